"""A comparison of loaders -> table, plot, page, and a line that says what bounds the best one."""
