"""What is known of a twin (the instrumented copy of a kernel) without its assembly language."""
