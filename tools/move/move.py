"""One-off: move notebooks into folders, rewrite references. Run in a checkout: python move.py"""
import json,re,subprocess,sys,posixpath,os
from pathlib import Path
MAP = {  # old notebook: (new notebook, new module); old module is read from default_exp
 '00_keys':'mark/00_keys','01_whitening':'mark/01_whitening','02_projection':'mark/02_projection',
 '03_null':'stats/00_null','04_leff':'stats/01_leff','05_rates':'stats/02_rates','06_calibration':'stats/03_calibration','07_goodness':'stats/04_goodness',
 '27_keynull':'stats/05_keynull','33_scanlaw':'stats/06_scanlaw',
 '16_artefacts':'models/01_artefacts','10_tokenization':'models/02_tokenization','11_assets':'models/03_assets','12_hosts':'models/04_hosts',
 '08_fingerprint':'models/05_fingerprint','13_encoders':'models/06_encoders','14_wordids':'models/07_wordids','15_graphs':'models/08_graphs',
 '20_config':'mark/03_config','17_windows':'mark/05_windows','21_tables':'mark/06_tables','24_sources':'mark/07_sources','09_words':'mark/08_words',
 '22_context':'mark/10_context','23_compiled':'mark/11_compiled','19_wordspace':'mark/13_wordspace','25_bias':'mark/20_bias','26_tournament':'mark/21_tournament',
 '28_scheme':'mark/30_scheme','29_insertion':'mark/31_insertion',
 '18_plain':'read/00_normalization','30_text':'read/02_text','31_detection':'read/10_detection','32_views':'read/04_views','34_scan':'read/05_scan',
 '36_identification':'read/12_identification','39_verdicts':'read/13_verdicts',
 '35_donors':'transfer/00_donors','37_neighbours':'transfer/01_neighbours','38_borrowed':'transfer/02_borrowed',
 'evaluation/40_content':'evaluation/texts/00_content','evaluation/41_corpora':'evaluation/texts/01_corpora','evaluation/42_sampling':'evaluation/texts/02_sampling','evaluation/43_likelihood':'evaluation/texts/03_likelihood',
 'evaluation/50_attacks':'evaluation/attacks/00_base','evaluation/56_characters':'evaluation/attacks/01_characters','evaluation/57_edits':'evaluation/attacks/02_edits','evaluation/51_translation':'evaluation/attacks/03_translation',
 'evaluation/44_wordnet':'evaluation/attacks/04_wordnet','evaluation/52_synonyms':'evaluation/attacks/05_synonyms','evaluation/45_endpoint':'evaluation/attacks/06_endpoint','evaluation/53_chat':'evaluation/attacks/07_chat',
 'evaluation/58_localchat':'evaluation/attacks/08_localchat','evaluation/54_rewriting':'evaluation/attacks/09_rewriting',
 'evaluation/60_schemes':'evaluation/schemes/00_base','evaluation/61_lists':'evaluation/schemes/01_lists','evaluation/62_synthid':'evaluation/schemes/02_synthid','evaluation/71_gumbel':'evaluation/schemes/03_exp',
 'evaluation/72_reweighting':'evaluation/schemes/04_reweighting','evaluation/73_morphmark':'evaluation/schemes/05_morphmark','evaluation/74_sir':'evaluation/schemes/06_sir','evaluation/75_semstamp':'evaluation/schemes/07_semstamp',
 'evaluation/76_atw':'evaluation/schemes/08_atw','evaluation/77_ts':'evaluation/schemes/09_ts','evaluation/63_registry':'evaluation/schemes/10_registry',
 'evaluation/46_units':'evaluation/studies/00_units','evaluation/64_kinds':'evaluation/studies/01_kinds','evaluation/55_quality':'evaluation/studies/02_quality','evaluation/65_studies':'evaluation/studies/03_plan',
 'evaluation/66_store':'evaluation/studies/04_store','evaluation/67_bench':'evaluation/studies/05_bench','evaluation/68_runner':'evaluation/studies/06_runner','evaluation/69_results':'evaluation/studies/07_results','evaluation/70_terminal':'evaluation/studies/08_terminal',
 '85_inputs':'serving/00_inputs','80_rows':'serving/01_vllm_rows','81_vllm':'serving/02_vllm','82_markllm':'serving/03_markllm','86_ray':'serving/04_ray','83_pages':'serving/05_pages','84_service':'serving/06_service',
 '90_shell':'shell/00_arguments','91_commands':'shell/01_commands','92_demo':'shell/02_demo','93_serve':'shell/03_serve',
}
MAP |= {'00_signing': 'models/00_signing', '00_stopping': 'models/00_stopping', '20_registry': 'mark/09_registry', '33_changes': 'stats/07_changes', '82_report': 'serving/07_report', '87_reportcheck': 'serving/08_reportcheck', '94_reporting': 'shell/04_reporting', 'evaluation/59_intervals': 'evaluation/studies/09_intervals', 'evaluation/78_plots': 'evaluation/studies/09_plots', '17_layout': 'read/01_layout', '80_many': 'read/14_many', '87_documents': 'serving/09_documents', '28_drawing': 'mark/32_drawing', '80_options': 'serving/01_options', 'evaluation/47_frames': 'evaluation/texts/04_frames', 'evaluation/79_packing': 'evaluation/studies/09_packing'}
def sh(*a): subprocess.run(a,check=True)
mods={}
have={}
for old,new in MAP.items():
    p=Path('nbs')/f'{old}.ipynb'
    if not p.exists(): print('missing',old); continue
    m=re.search(r'#\|\s*default_exp\s+([\w.]+)',p.read_text())
    mods[m[1]] = re.sub(r'(^|/)\d+_',r'\1',new).replace('/','.')
    have[old]=new
left=[str(p.relative_to('nbs'))[:-6] for p in Path('nbs').rglob('*.ipynb') if re.match(r'\d',p.name) and str(p.relative_to('nbs'))[:-6] not in have]
if left: sys.exit(f'not mapped: {left}')
for o,n in mods.items(): print(f'{o:28} -> {n}')
ref=re.compile(r'\bdew_nb\.((?:evaluation\.)?\w+)\b(?!\.(?:dew|py|io)\b)')
def refs(s):
    return ref.sub(lambda m: 'dew_nb.'+mods[m[1]] if m[1] in mods else m[0], s)
stem={}   # notebook stem without folder
for o,n in have.items():
    stem[o]=n
    stem[o.split('/')[-1]]=n
names=re.compile(r'(?<![\w/])(?:(evaluation)/)?(\d\d_[a-z]+)(?=\b(?!\.ipynb\b.{0,0}\)))')
link=re.compile(r'(\]\()([^()\s#]*?)((?:\d\d_)\w+)\.ipynb')
def in_nb(s,rel_old,rel_new,json_text=True):
    "prose links and names; rel_*: path of the notebook below nbs/"
    d_old,d_new=posixpath.dirname(rel_old),posixpath.dirname(rel_new)
    def lk(m):
        t=posixpath.normpath(posixpath.join(d_old,m[2]+m[3]))
        if t not in have: return m[0]
        return m[1]+posixpath.relpath(have[t],d_new or '.')+'.ipynb'
    s=link.sub(lk,s)
    # links to unnumbered pages
    def lk2(m):
        t=posixpath.normpath(posixpath.join(d_old,m[2]))
        if not (Path('nbs')/t).exists(): return m[0]
        return m[1]+posixpath.relpath(t,d_new or '.')+m[3]
    s=re.sub(r'(\]\()((?:\.\./)*(?:tutorials|studies|index)[\w/.]*?)((?:#[\w-]*)?\))',lk2,s)
    s=re.sub(r'(\]\()((?:\.\./)+(?!\.)[\w./-]+?)((?:#[\w-]*)?\))',lambda m:lk3(m,d_old,d_new),s)
    # names in backticks
    s=re.sub(r'`(?:nbs/)?((?:evaluation/)?\d\d_[a-z]+)(\.ipynb)?`',lambda m:f'`{stem[m[1]]}{m[2] or ""}`' if m[1] in stem else m[0],s)
    return s
def lk3(m,d_old,d_new):
    t=posixpath.normpath(posixpath.join('nbs',d_old,m[2]))
    if d_old==d_new or t.startswith('nbs/') and re.search(r'/\d\d_',t): return m[0]
    if not Path(t).exists(): return m[0]
    return m[1]+posixpath.relpath(t,posixpath.join('nbs',d_new))+m[3]
def paths(s):
    return re.sub(r'\bnbs/((?:evaluation/)?\d\d_\w+)\.ipynb',lambda m:f'nbs/{have[m[1]]}.ipynb' if m[1] in have else m[0],s)
# rewrite before moving
for p in sorted(Path('nbs').rglob('*.ipynb')):
    rel=str(p.relative_to('nbs'))[:-6]; new=have.get(rel,rel)
    nb=json.loads(p.read_text())
    for c in nb['cells']:
        src=c['source'] if isinstance(c['source'],str) else ''.join(c['source'])
        was=src
        src=re.sub(r'(#\|\s*default_exp\s+)([\w.]+)',lambda m:m[1]+mods.get(m[2],m[2]),src)
        src=paths(refs(src))
        if c['cell_type']=='markdown': src=in_nb(src,rel,new)
        if src!=was: c['source']=src.splitlines(keepends=True)
        for o in c.get('outputs',[]):
            for k in ('text',):
                if k in o: 
                    t=''.join(o[k]); t2=refs(t)
                    if t2!=t: o[k]=t2.splitlines(keepends=True)
            for k,v in o.get('data',{}).items():
                if k.startswith('text/'):
                    t=''.join(v); t2=refs(t)
                    if t2!=t: o['data'][k]=t2.splitlines(keepends=True)
    p.write_text(json.dumps(nb,indent=1,ensure_ascii=False,sort_keys=True)+'\n')
for o,n in have.items():
    q=Path('nbs')/f'{n}.ipynb'; q.parent.mkdir(parents=True,exist_ok=True)
    sh('git','mv',f'nbs/{o}.ipynb',str(q))
files=subprocess.run(['git','ls-files'],capture_output=True,text=True).stdout.split('\n')
for f in files:
    if not f or f.endswith('.ipynb') or f.startswith(('dew_nb/','nbs/studies/data','tools/vendor','constraints')): continue
    p=Path(f)
    if not p.exists() or p.suffix not in ('.py','.toml','.ini','.md','.yml','.yaml','.txt','','.cfg') : continue
    try: s=p.read_text()
    except UnicodeDecodeError: continue
    t=paths(refs(s))
    if f=='CONTRIBUTING.md' or f=='CHANGELOG.md': t=re.sub(r'`(?:nbs/)?((?:evaluation/)?\d\d_[a-z]+)(\.ipynb)?`',lambda m:f'`{stem[m[1]]}{m[2] or ""}`' if m[1] in stem else m[0],t)
    if t!=s: p.write_text(t); print('rewrote',f)
# old modules go
for o in mods:
    f=Path('dew_nb')/(o.replace('.','/')+'.py')
    if f.exists(): sh('git','rm','-q','-f',str(f))
sh('git','rm','-q','--cached','--ignore-unmatch','dew_nb/_modidx.py')
