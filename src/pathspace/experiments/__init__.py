"""Built-in models, data sets, a training engine, and the papers' tables and figures."""
