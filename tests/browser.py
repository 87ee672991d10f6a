"A real browser without a driver: Chromium's DevTools protocol over a pair of pipes"
import base64, json, os, select, shutil, subprocess, tempfile, time

CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'))), None)


class Browser:
    "One page of a headless Chromium"
    def __init__(self):
        self.folder, self.n, self.left, self.events = tempfile.mkdtemp(), 0, b'', []
        (r3, self.to), (self.out, w4) = os.pipe(), os.pipe()
        def fds():
            a, b = os.dup(r3), os.dup(w4)                   # neither is 3 or 4 when the other is put there
            os.dup2(a, 3)
            os.dup2(b, 4)
        args = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--remote-debugging-pipe', '--no-first-run',
                '--disable-background-networking', '--disable-component-update', '--disable-sync', f'--user-data-dir={self.folder}']
        self.p = subprocess.Popen([CHROMIUM, *args, 'about:blank'], preexec_fn=fds, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(r3)
        os.close(w4)
        self.session = None
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Network', 'DOM', 'Log'): self.call(f'{domain}.enable')

    def read(self, until):
        "The next message"
        while b'\0' not in self.left:
            if not select.select([self.out], [], [], max(0, until - time.monotonic()))[0]: raise TimeoutError('the browser does not answer')
            more = os.read(self.out, 1 << 20)
            if not more: raise EOFError('the browser has ended')
            self.left += more
        one, _, self.left = self.left.partition(b'\0')
        return json.loads(one)

    def call(self, method, timeout=60, **params):
        "A command's result; events are kept"
        self.n += 1
        message = dict(id=self.n, method=method, params=params) | ({'sessionId': self.session} if self.session else {})
        os.write(self.to, json.dumps(message).encode() + b'\0')
        until = time.monotonic() + timeout
        while (got := self.read(until)).get('id') != self.n: self.events.append(got)
        assert 'error' not in got, got
        return got['result']

    def open(self, url):
        "Load a page and wait for it"
        self.call('Page.navigate', url=url)
        self.wait("document.readyState == 'complete' && location.href != 'about:blank'")

    def js(self, code):
        "The value of an expression"
        got = self.call('Runtime.evaluate', expression=code, awaitPromise=True, returnByValue=True)
        assert 'exceptionDetails' not in got, got
        return got['result'].get('value')

    def wait(self, code, seconds=30):
        "Wait until an expression is true"
        until = time.monotonic() + seconds
        while not self.js(code):
            assert time.monotonic() < until, f'still not: {code}'
            time.sleep(.05)

    def look(self, width, height=900, dark=False):
        "A size of the window, light or dark"
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call('Emulation.setEmulatedMedia', features=[dict(name='prefers-color-scheme', value='dark' if dark else 'light')])

    def screenshot(self, path):
        "The whole page as PNG"
        data = self.call('Page.captureScreenshot', captureBeyondViewport=True)['data']
        with open(path, 'wb') as f: f.write(base64.b64decode(data))

    def choose_file(self, selector, path):
        "Give a file to an input"
        root = self.call('DOM.getDocument')['root']['nodeId']
        node = self.call('DOM.querySelector', nodeId=root, selector=selector)['nodeId']
        self.call('DOM.setFileInputFiles', nodeId=node, files=[str(path)])

    def close(self):
        self.p.terminate()
        self.p.wait(20)
        for fd in (self.to, self.out): os.close(fd)
        shutil.rmtree(self.folder, ignore_errors=True)
