"""What is made of images, by key: entries, and the private, content-addressed store that they are in."""
