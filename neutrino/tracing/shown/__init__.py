"""What reports show of a trace, chosen once: text, JSON, XML, the page and a comparison show the same.

``report.shown_report(summarize(trace))`` gives a ``ShownReport``: sections of lines and tables, as ``model.py``
describes them. Nothing in it is escaped, shortened or wrapped: renderers do that for their own medium.
"""
