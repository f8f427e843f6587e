"""The leaderboard as a static page: one file that needs no network, and a page for each record beside it."""

from xmcbench.reporting.page.site import write_page

__all__ = ["write_page"]
