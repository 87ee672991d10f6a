"""Less work for Sphinx, with the same pages: what it does again for each page, block or name is remembered.

A build of some hundred notebooks takes two thirds of the time it takes without. `hasten(app)` is called before `app.build`."""
import posixpath
from functools import cache

PAGE = '<li class="toctree-l1"><a class="reference internal" href="{}.html">'       # what the sidebar's lists are made of
HERE = '<li class="toctree-l1 current active"><a class="current reference internal" href="#">'
LIST, LIST_HERE = '<ul class="nav bd-sidenav">', '<ul class="current nav bd-sidenav">'

def quick_sidebar(app):
    "For each page, the theme makes the list of all pages: a third of the work. Make it once a folder, where only the page itself stands out"
    from pydata_sphinx_theme.toctree import add_toctree_functions as theirs
    listener, = (o for o in app.events.listeners['html-page-context'] if o.handler is theirs)
    app.disconnect(listener.id)
    made = {}
    def on_page(app, page, template, context, doctree):
        theirs(app, page, template, context, doctree)
        make, folder, mine = context['generate_toctree_html'], posixpath.dirname(page), PAGE.format(posixpath.basename(page))
        def sidebar(**kw):
            if folder not in made: made[folder] = str(make(**kw)).replace(HERE, mine).replace(LIST_HERE, LIST)
            before, found, after = made[folder].partition(mine)
            return LIST_HERE.join(before.rsplit(LIST, 1)) + HERE + after if found else make(**kw)       # a page without a place in it, or another theme's lists
        context['generate_toctree_html'] = sidebar
    app.connect('html-page-context', on_page, priority=499)  # before those who ask for it

def quick_names(app):
    "A type in a signature that nobody documents (`int`) is looked for among all names, under three kinds: once a name is enough"
    def on_write(app, builder):
        domain = app.env.domains['py']
        domain.find_obj = cache(domain.find_obj)             # all pages are read, so nothing is added any more
    app.connect('write-started', on_write)

def quick_stems(app):
    "The stem of a word for the search index: found once a word, not once a page"
    from sphinx.search.en import SearchEnglish
    SearchEnglish.stem = cache(SearchEnglish.stem)

def quick_highlighter(app):
    "For each block of code a lexer is looked for among five hundred, and a formatter makes its style sheet: one is enough"
    from ipython_pygments_lexers import IPython3Lexer
    from sphinx.highlighting import PygmentsBridge
    app.add_lexer('ipython3', IPython3Lexer)
    make, made = PygmentsBridge.get_formatter, {}
    def get_formatter(self, **kw):
        key = self, repr(sorted(kw.items()))
        if key not in made: made[key] = make(self, **kw)
        return made[key]
    PygmentsBridge.get_formatter = get_formatter

def hasten(app):
    "All of them; before `app.build`"
    for f in (quick_sidebar, quick_names, quick_stems, quick_highlighter): f(app)
