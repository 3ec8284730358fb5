"""``april verify-sd``: shows that speculative decoding changes nothing but the speed."""
