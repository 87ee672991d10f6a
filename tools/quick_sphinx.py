"""Less work for Sphinx, with the same pages: what it does again for each page, block or name is remembered.

A build of some hundred notebooks takes two thirds of the time it takes without. `hasten(app)` is called before `app.build`."""
from functools import cache

def quick_sidebar(app):
    "For each page, Sphinx copies the headings and symbols of all pages, to keep their titles: a third of its work. Give it the titles alone"
    titles = {}
    def cut(toc):
        "The first entries of a list of contents, without those below them"
        top = toc.copy()
        for item in toc.children:
            top += item.copy()
            top[-1] += item.children[0].deepcopy()
        return top
    def on_page(app, page, template, context, doctree):
        env, full = app.env, context['toctree']
        if not titles: titles.update((name, cut(toc)) for name,toc in env.tocs.items())
        def toctree(**kw):
            tocs, env.tocs = env.tocs, titles
            try: return full(**kw)
            finally: env.tocs = tocs
        context['toctree'] = toctree
    app.connect('html-page-context', on_page, priority=1)   # before the theme's

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

def quick_search(app):
    "The nodes of a kind in a tree, in docutils' order, without a generator for each level"
    from docutils.nodes import Node
    def nodes_of(self, cls):
        if isinstance(self, cls): yield self
        open_lists = [iter(self.children)]
        while open_lists:
            for child in open_lists[-1]:
                if isinstance(child, cls): yield child
                if child.children:
                    open_lists.append(iter(child.children))
                    break
            else: open_lists.pop()
    full = Node.findall
    def findall(self, condition=None, include_self=True, descend=True, siblings=False, ascend=False):
        below = include_self and descend and not (siblings or ascend)
        if below and callable(condition) and not isinstance(condition, type): return filter(condition, nodes_of(self, Node))
        return full(self, condition, include_self, descend, siblings, ascend)
    Node._fast_findall, Node.findall = nodes_of, findall

def hasten(app):
    "All of them; before `app.build`"
    for f in (quick_sidebar, quick_names, quick_stems, quick_highlighter, quick_search): f(app)
