"""``april buffer``: looks at a buffer of partials without changing it."""
