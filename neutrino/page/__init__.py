"""Pages of traces: one HTML file with pictures, for a browser without a network.

``document`` puts a page together: ``scripts`` its JavaScript, the views of ``registry``, and the data that these draw,
each prepared by a module of its own and written as ``columns``.
"""
