"""The layouts, reasons and file formats that C, assembly and Python share; imports nothing of the project."""
