"""Build a site from the documents, to read in a browser without a network (`make docs-site`).

`navigation` lists the documents of the site and their places on it. `pages` makes pages of them: links lead
to places of the site, `agents` gives each coding agent a page of its own, and each block of commands says
which test runs it. `building` lets Zensical make HTML of the pages, and adds each one as Markdown and
`llms.txt`. `checking` finds links of the result that lead nowhere, and what would be loaded from elsewhere.
"""
