"""What a body's instructions do and need, without changing them."""
