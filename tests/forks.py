"Programs in a fork of this process, where everything is imported already: a fresh Python spends seconds on that. Only where a fork is safe"
import os, signal, subprocess, sys, tempfile, time, traceback

PIPE, SAFE = subprocess.PIPE, sys.platform == 'linux'


class Forked:
    "`work()` in a fork, which ends with what it returns; used like a `subprocess.Popen`. Standard files are files, pipes or, if not given, temporary files"
    def __init__(self, work, stdin=None, stdout=None, stderr=None, env=None, text=True):
        self.returncode, self.text = None, text
        ends = [self.ends(i, f) for i,f in enumerate((stdin, stdout, stderr))]
        self.stdin, self.stdout, self.stderr = (mine for mine,_ in ends)
        self.pid = os.fork()
        if not self.pid: self.become(work, [its for _,its in ends], env)
        for f,(_,its) in zip((stdin, stdout, stderr), ends):
            if f == PIPE: os.close(its)
    def ends(self, i, f):
        "This side of a standard file, and the descriptor of the other"
        mode = 'r' if i else 'w'
        if f == PIPE:
            r, w = os.pipe()
            mine, its = (r, w) if i else (w, r)
            return (open(mine, mode, encoding='utf-8') if self.text else open(mine, f'{mode}b')), its
        if f is None: f = tempfile.TemporaryFile('w+', encoding='utf-8') if self.text else tempfile.TemporaryFile()
        return f, f.fileno()
    def become(self, work, fds, env):
        code = 1
        try:
            for f in (self.stdin, self.stdout, self.stderr):
                if f.fileno() not in fds: f.close()                       # the other side's ends of pipes
            for i,fd in enumerate(fds): os.dup2(fd, i)
            sys.stdin, sys.stdout, sys.stderr = (open(i, 'w' if i else 'r', encoding='utf-8', closefd=False) for i in range(3))
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            if 'torch' in sys.modules: sys.modules['torch'].set_num_threads(1)
            code = work() or 0
        except SystemExit as e: code = e.code if isinstance(e.code, int) else int(e.code is not None)
        except BaseException: traceback.print_exc()
        finally:
            try:
                for f in (sys.stdout, sys.stderr): f.flush()
            finally: os._exit(code)
    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid: self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode
    def wait(self, timeout=300):
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError('the fork does not end')
            time.sleep(.005)
        return self.returncode
    def send_signal(self, number):
        if self.poll() is None: os.kill(self.pid, number)
    def kill(self): self.send_signal(signal.SIGKILL)
    def communicate(self, timeout=300):
        "What it wrote on either file, after its end"
        out = None if self.stdout.seekable() else self.stdout.read()
        self.wait(timeout)
        return out if out is not None else from_start(self.stdout), from_start(self.stderr) if self.stderr.seekable() else self.stderr.read()


def from_start(f):
    f.seek(0)
    return f.read()
