"""How measurements are told, live or simulated: quantiles, result files, tables, plots, pages."""
