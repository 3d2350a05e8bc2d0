# SPDX-License-Identifier: BSD-2-Clause
"""What the GPU tests, the benchmark and the demo share: an agent of their own, ranks of job.py with
and without `lien run`, the `lien` command, and the end of all of it.

Everything that is started has a process group of its own, dies with this process, and is killed
when its Session ends. Every wait has a limit; what it waited for is in the Failure.
"""
import ctypes
import json
import os
import random
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.append(str(ROOT / "tests"))  # for tests/lien_shared: see tests/integration/lien_test.py

from lien_shared.process import Failure, Late, Outcome, end, kill_group, run, wait_for  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

# NVLink multicast is beyond what lien moves so far, and harms shared hosts.
QUIET_NCCL = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
              "NVSHMEM_DISABLE_NVLS": "1"}

PROBE = """
import json, torch
print(json.dumps({"torch": str(torch.__version__), "cuda": str(torch.version.cuda),
                  "gpus": torch.cuda.device_count(),
                  "nccl": ".".join(map(str, torch.cuda.nccl.version()))}))
"""


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(argv: list, **options) -> subprocess.Popen:
    return subprocess.Popen([str(a) for a in argv], start_new_session=True,
                            preexec_fn=_die_with_parent, **options)


def run_command(argv: list, timeout: float, env: dict | None = None) -> Outcome:
    return run(argv, timeout, env, preexec_fn=_die_with_parent)


@contextmanager
def deadline(seconds: float, what: str):
    """A Late in the main thread after that time, whatever it does. Not to be nested."""
    def ring(_signal, _frame):
        raise Late(f"{what} took longer than {seconds:g} s")
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def end_on_signals() -> None:
    """So that `finally` clauses run when someone ends this process."""
    def leave(number, _frame):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def tail(path: Path, lines: int = 30) -> str:
    try:
        last = path.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(line[:300] for line in last)
    except OSError as error:
        return f"({error})"


def free_port() -> int:
    """Below the ports that the kernel hands out, one of which another process may get meanwhile."""
    for port in random.sample(range(15000, 30000), 100):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise Failure("no free port between 15000 and 30000")


def probe_gpus(need: int = 2) -> tuple[dict | None, str]:
    """What PyTorch sees, or None and the reason why the GPU tests can't run here."""
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/nvidiactl").exists():
        return None, "no NVIDIA driver"
    try:
        outcome = run_command([sys.executable, "-c", PROBE], 240)
    except Failure as failure:
        return None, f"PyTorch does not answer: {failure}"
    if outcome.code:
        return None, f"{sys.executable} has no working PyTorch: {outcome.text()[-300:]}"
    seen = outcome.json()
    if seen["gpus"] < need:
        return None, f"{seen['gpus']} GPU(s) seen by PyTorch, {need} needed"
    return seen, ""


def touch_host(gib: float) -> float:
    """Touches that much host memory once, in a child, and gives it back: a virtual machine whose
    memory grows with use would be timed otherwise. Returns the GiB touched."""
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    size = int(min(gib * GIB, available * 0.8)) & ~0xfff
    if size <= 0:
        return 0
    code = ("import mmap,sys;mmap.mmap(-1,int(sys.argv[1]),"
            "mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS|mmap.MAP_POPULATE)")
    try:
        run_command([sys.executable, "-c", code, size], 120)
    except Failure:
        return 0
    return size / GIB


def check_binary(path: Path) -> Path:
    if not os.access(path, os.X_OK):
        raise Failure(f"{path} is not there: run make first")
    return Path(path).resolve()


class Lien:
    """The binary, and one agent's socket."""

    def __init__(self, binary: Path, directory: Path, environment: dict | None = None):
        self.binary = check_binary(binary)
        self.socket = directory / "agent.sock"
        self.log = directory / "agent.log"
        self.environment = {**(os.environ if environment is None else environment),
                            "LIEN_SOCKET": str(self.socket)}
        self.agent: subprocess.Popen | None = None

    def start_agent(self, limit_s: float = 30, attach: bool = False, library: Path | None = None) -> float:
        """Returns the ms until it answered."""
        began = time.monotonic()
        with open(self.log, "ab") as log:
            options = ["--no-journal", *([] if attach else ["--no-attach"]),
                       *(["--library", library] if library else [])]
            self.agent = spawn([self.binary, "agent", *options, "--socket", self.socket],
                               env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                               stderr=log)

        def answers() -> bool:
            if self.agent.poll() is not None:
                raise Failure(f"the agent ended with status {self.agent.returncode}:\n"
                              f"{tail(self.log)}")
            try:
                return bool(self.request({"op": "status"}, 5))
            except (OSError, Failure):
                return False

        wait_for(f"the agent answers at {self.socket}", answers, limit_s)
        return (time.monotonic() - began) * 1e3

    def stop_agent(self) -> int | None:
        agent, self.agent = self.agent, None
        if agent is None:
            return None
        return end(agent, signal.SIGTERM, 10)

    def check_agent(self) -> None:
        if self.agent is not None and self.agent.poll() is not None:
            raise Failure(f"the agent died with status {self.agent.returncode}:\n{tail(self.log)}")

    def request(self, request: dict, timeout: float = 30) -> dict:
        """Straight over the socket; returns the result, raises Failure with the error."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout)
            sock.connect(str(self.socket))
            return exchange(sock.makefile("rwb"), request)

    def command(self, *arguments, timeout: float = 60) -> Outcome:
        return run_command([self.binary, *arguments], timeout, self.environment)

    def json(self, name: str, *arguments, timeout: float = 60) -> dict:
        """The result of a subcommand that must succeed."""
        outcome = self.command(name, "--json", *arguments, timeout=timeout)
        if outcome.code:
            self.check_agent()
            raise Failure(f"`lien {name} {' '.join(map(str, arguments))}` ended with "
                          f"{outcome.code}: {outcome.text()[:1000]}")
        result = outcome.json()
        for row in result["short"] if name == "offload" and "short" in result else ():
            print(f"   did not come free: {row}", flush=True)
        return result

    def refused(self, name: str, *arguments, timeout: float = 60) -> Outcome:
        """A subcommand that must be refused, by a line of text and not by a signal."""
        outcome = self.command(name, *arguments, timeout=timeout)
        line = f"lien {name} {' '.join(map(str, arguments))}"
        if outcome.code == 0:
            raise Failure(f"`{line}` was not refused: {outcome.text()[:600]}")
        if outcome.code < 0 or outcome.code >= 128:
            raise Failure(f"`{line}` died with {outcome.code}: {outcome.text()[:600]}")
        if not outcome.text():
            raise Failure(f"`{line}` ended with {outcome.code} and gave no reason")
        return outcome


def exchange(stream, request: dict) -> dict:
    stream.write(json.dumps(request).encode() + b"\n")
    stream.flush()
    while True:
        line = stream.readline()
        if not line:
            raise Failure(f"the agent closed the connection on {request}")
        reply = json.loads(line)
        if "progress" in reply:
            continue
        if not reply.get("ok"):
            raise Failure(f"{request['op']}: {reply.get('error')}")
        return reply["result"]


class Rank:
    """One process of job.py."""

    def __init__(self, argv: list, env: dict, log: Path):
        self.log = log
        self.pid = 0
        self.answers: queue.Queue = queue.Queue()
        with open(log, "ab") as errors:
            self.process = spawn(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=errors, text=True, bufsize=1, errors="replace")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def send(self, command: str) -> None:
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it is gone: the missing answer says so

    def answer(self, until: float, command: str) -> dict | None:
        """The answer to that command, None when there is none in time; raises Failure when the rank
        is gone. Late answers to earlier commands, and what is no answer, are passed over."""
        while True:
            try:
                line = self.answers.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                return None
            if line is None:
                self.answers.put(None)
                code = end(self.process, 0)
                raise Failure(f"rank of pid {self.pid} ended with status {code}")
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if isinstance(answer, dict) and answer.get("command") == command:
                return answer


GPUS = 0  # that jobs use; 0: one for each rank


def place(number: int, gpus: int) -> dict:
    """The environment that gives a rank its GPU. NCCL takes two ranks on one GPU only for ranks of two
    hosts: then they talk over sockets, and share no memory."""
    if number < gpus:
        return {"LOCAL_RANK": str(number)}
    return {"LOCAL_RANK": str(number % gpus), "NCCL_HOSTID": f"host-{number // gpus}",
            "NCCL_SOCKET_IFNAME": "lo"}


class Job:
    """All ranks of one job. `launcher` goes before the command, e.g. [lien, "run", "--"]."""

    def __init__(self, name: str, directory: Path, ranks: int = 2, launcher: list | None = None,
                 env: dict | None = None, arguments: list | None = None, program: Path = HERE / "job.py"):
        self.name = name
        self.ranks: list[Rank] = []
        common = {**QUIET_NCCL, "OMP_NUM_THREADS": "8", **os.environ,
                  "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                  "WORLD_SIZE": str(ranks), **(env or {})}
        argv = [*(launcher or []), sys.executable, "-u", program, *(arguments or [])]
        try:
            for number in range(ranks):
                own = {**common, "RANK": str(number), **place(number, GPUS or ranks)}
                self.ranks.append(Rank(argv, own, directory / f"{name}.{number}.log"))
            for rank, answer in zip(self.ranks, self.collect("start", 180)):
                rank.pid = answer["pid"]
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list:
        return [rank.pid for rank in self.ranks]

    def ask(self, command: str, limit_s: float = 60, ranks: list | None = None) -> list:
        """Gives a command to all ranks (or those numbered) at once; their answers in order."""
        chosen = self.ranks if ranks is None else [self.ranks[n] for n in ranks]
        self.tell(command, chosen)
        return self.collect(command, limit_s, chosen)

    def tell(self, command: str, chosen: list | None = None) -> None:
        """Gives a command; collect() has the answers."""
        for rank in self.ranks if chosen is None else chosen:
            rank.send(command)

    def collect(self, command: str, limit_s: float, chosen: list | None = None) -> list:
        """Once one rank has failed the others get 3 s more: they may wait for it for ever."""
        chosen = self.ranks if chosen is None else chosen
        until = time.monotonic() + limit_s
        answers: dict[int, dict | None] = {}
        waiting = list(range(len(chosen)))
        problems = []
        while waiting and time.monotonic() < until:
            for number in list(waiting):
                try:
                    answer = chosen[number].answer(min(until, time.monotonic() + 0.05),
                                                   command.split()[0])
                except Failure as failure:
                    answer = {"ok": False, "error": str(failure)}
                if answer is None:
                    continue
                waiting.remove(number)
                answers[number] = answer
                if not answer.get("ok"):
                    problems.append(f"rank {number}: {answer.get('error')}")
                    until = min(until, time.monotonic() + 3)
        if waiting:
            self.dump_stacks()
            problems += [f"rank {n} (pid {chosen[n].pid}) gave no answer to `{command}`"
                         for n in waiting]
        if problems:
            kind = Late if waiting and len(problems) == len(waiting) else Failure
            raise kind(f"{self.name}: `{command}` (limit {limit_s:g} s): " + "; ".join(problems))
        return [answers[n] for n in range(len(chosen))]

    def dump_stacks(self) -> None:
        """Where each rank stands goes to its log."""
        for rank in self.ranks:
            if rank.pid and rank.process.poll() is None:
                try:
                    os.kill(rank.pid, signal.SIGUSR1)
                except ProcessLookupError:
                    pass
        time.sleep(1)

    def quit(self, limit_s: float = 60) -> list:
        """Exit statuses of a good end; raises when a rank does not end."""
        self.ask("quit", limit_s)
        codes = []
        until = time.monotonic() + limit_s
        for number, rank in enumerate(self.ranks):
            try:
                codes.append(rank.process.wait(max(0.1, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                self.dump_stacks()
                raise Late(f"{self.name}: rank {number} (pid {rank.pid}) has not ended "
                           f"{limit_s:g} s after quit") from None
        return codes

    def kill(self) -> None:
        for rank in self.ranks:
            kill_group(rank.process)
        for rank in self.ranks:
            end(rank.process)


class Session:
    """A directory, an agent and jobs; leaving it ends all of them."""

    def __init__(self, binary: Path, logs: Path | None = None, name: str = "session",
                 environment: dict | None = None):
        check_binary(binary)
        self.temporary = Path(tempfile.mkdtemp(prefix=f"lien-{name}-"))
        self.logs = (logs.resolve() / name) if logs else self.temporary
        self.logs.mkdir(parents=True, exist_ok=True)
        self.jobs: list[Job] = []
        self.processes: list[subprocess.Popen] = []
        self.lien = Lien(binary, self.temporary, environment)
        self.lien.log = self.logs / "agent.log"

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind, error, _trace) -> None:
        try:
            self.close()
        finally:
            if kind is not None and kind is not SystemExit:
                print(self.tails(), flush=True)
            shutil.rmtree(self.temporary, ignore_errors=True)

    def job(self, name: str = "job", with_lien: bool = True, **options) -> Job:
        launcher = [self.lien.binary, "run", "--"] if with_lien else None
        options["env"] = {"LIEN_SOCKET": str(self.lien.socket), **options.get("env", {})}
        job = Job(name, self.logs, launcher=launcher, **options)
        self.jobs.append(job)
        return job

    def close(self) -> None:
        """Jobs first: what the agent says about their end is in its log."""
        for job in self.jobs:
            job.kill()
        for process in self.processes:
            end(process)
        self.lien.stop_agent()

    def tails(self, lines: int = 30) -> str:
        parts = []
        for path in sorted(self.logs.glob("*.log")):
            if path.name.startswith("nccl.") or not path.stat().st_size:
                continue
            parts.append(f"--- the end of {path.name}\n{tail(path, lines)}")
        return "\n".join(parts) or "--- no logs"
