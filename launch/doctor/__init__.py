"""``april doctor``: facts of this machine, read once, and checks that are pure functions over them."""
