"""Figures for papers, drawn with matplotlib (the extra `plots`)."""

from xmcbench.reporting.plots.of_analyses import forest, write_analysis_figures
from xmcbench.reporting.plots.of_tables import write_figures

__all__ = ["forest", "write_analysis_figures", "write_figures"]
