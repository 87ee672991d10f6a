import re,subprocess,json,sys
from pathlib import Path
sys.argv=['x']
src=Path(__file__).with_name('move.py').read_text().split('MAP |=')[0]
ns={}; exec(src,ns); MAP=ns['MAP']
old={'evaluation/76_atw':'adaptive','evaluation/77_ts':'tokenspecific'}
mods={}
for o,n in MAP.items():
    om=old.get(o) or re.sub(r'^\d+_','',o.split('/')[-1])
    mods[('evaluation.' if o.startswith('evaluation/') else '')+om]=re.sub(r'(^|/)\d+_',r'\1',n).replace('/','.')
def fix(s):
    def f(m):
        ind,pkg,names=m[1],m[2] or '',m[3]
        parts=[p.strip() for p in names.split(',')]
        keep,out=[],{}
        for p in parts:
            q=re.match(r'(\w+)(?: as (\w+))?$',p)
            if not q: keep.append(p); continue
            key=(pkg[1:]+'.' if pkg else '')+q[1]
            if key in mods:
                new=mods[key]; d,_,b=new.rpartition('.')
                alias=q[2] or (q[1] if b!=q[1] else None)
                out.setdefault(d,[]).append(b+(f' as {alias}' if alias else ''))
            else: keep.append(p)
        if not out: return m[0]
        L=([f'from dew_nb{pkg} import '+', '.join(keep)] if keep else [])+[f'from dew_nb.{d} import '+', '.join(v) for d,v in out.items()]
        sep='\n'+ind if m[0].startswith('\n') or m[1]!=None and '\n' not in ind else '; '
        return ('\n'+ind).join(L) if False else ind+('\n'+ind).join(L)
    return re.sub(r'(?m)^([ \t]*)from dew_nb(\.evaluation)? import ([\w ,]+)$',f,s)
for f in subprocess.run(['git','ls-files','tests','tools','nbs'],capture_output=True,text=True).stdout.split():
    p=Path(f)
    if p.suffix=='.py':
        s=p.read_text(); t=fix(s)
        if t!=s: p.write_text(t); print(f)
    elif p.suffix=='.ipynb':
        nb=json.loads(p.read_text()); ch=False
        for c in nb['cells']:
            if c['cell_type']!='code': continue
            s=''.join(c['source']); t=fix(s)
            if t!=s: c['source']=t.splitlines(keepends=True); ch=True
        if ch: p.write_text(json.dumps(nb,indent=1,ensure_ascii=False,sort_keys=True)+'\n'); print(f)
