"""One file per dashboard: which rows it has, its columns, and what stands below the table for the chosen row."""
