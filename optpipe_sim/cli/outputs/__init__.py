"""What commands print: tables, progress, reports and JSON."""
