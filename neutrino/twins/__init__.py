"""From twins' text to images that were held against the originals, with what manifests say of them."""
