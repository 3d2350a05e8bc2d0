// SPDX-License-Identifier: BSD-2-Clause
/*
 * Makes a thread of another process work for us.
 *
 * The thread is stopped in a system call that the kernel can restart. All changes are undone in a
 * stop of the same kind, orig_rax included, so that the kernel then does exactly what it would have
 * done without us: restart the call with the time that was left, or end it with EINTR for a signal
 * that has a handler. Registers are borrowed only after a frame like a signal handler's lies below
 * the thread's stack, and all code that it is made to run ends in a return through that frame: if
 * we are killed, the kernel lets the thread go, and it runs on and recovers by itself.
 */
#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "loader/inject/inject_internal.h"

/* Results of a system call, inside the kernel, that ask for a restart; <linux/errno.h> defines them
 * only for the kernel. */
#define ERESTARTSYS	      512
#define ERESTARTNOINTR	      513
#define ERESTARTNOHAND	      514
#define ERESTART_RESTARTBLOCK 516

#define USER_CS	    0x33
#define FLAGS	    0x202 /* only interrupts on */
#define SPIN_NS	    200000
#define STUCK_NS    (200 * 1000000ull)
#define BORROWED_NS (1000 * 1000000ull)

/* Calls that end with EINTR when a thread is stopped, although nothing else happened. */
static const int unfair[] = {SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_rt_sigtimedwait,
	SYS_semop, SYS_semtimedop, SYS_io_getevents, SYS_io_pgetevents, SYS_io_uring_enter,
	SYS_recvfrom, SYS_recvmsg, SYS_recvmmsg, SYS_sendto, SYS_sendmsg, SYS_accept, SYS_accept4,
	SYS_read, SYS_readv, SYS_write, SYS_writev};

static long trace(struct lien_remote *remote, int request, void *address, void *data)
{
	return ptrace(request, remote->tid, address, data) < 0 ? -errno : 0;
}

/* Waits for its next stop. -ESRCH: it has ended, -ETIMEDOUT. */
static int await(struct lien_remote *remote, uint64_t deadline, int *status)
{
	const struct timespec nap = {.tv_nsec = 50000};
	uint64_t begun = lien_clock_ns(), now = begun;
	pid_t found;

	for (;;) {
		found = waitpid(remote->tid, status, __WALL | WNOHANG);
		if (found < 0 && errno != EINTR)
			return -ESRCH;
		if (found > 0) {
			remote->stopped = WIFSTOPPED(*status);
			return remote->stopped ? 0 : -ESRCH;
		}
		if (now > deadline)
			return -ETIMEDOUT;
		if (now - begun < SPIN_NS)
			sched_yield();
		else
			nanosleep(&nap, NULL);
		now = lien_clock_ns();
	}
}

static int event_of(int status)
{
	return status >> 16;
}

static bool is_crash(int signal)
{
	return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE ||
	       signal == SIGTRAP;
}

/* Continues it with that request, if it is stopped. */
static int resume(struct lien_remote *remote, int request, long signal)
{
	if (!remote->stopped)
		return 0;
	remote->stopped = remote->trapped = false;
	return trace(remote, request, NULL, (void *)signal);
}

/* Returns the signal of a signal stop. */
static int signal_of(int status)
{
	return event_of(status) || WSTOPSIG(status) & 0x80 ? 0 : WSTOPSIG(status);
}

/*
 * Runs it to the point where the kernel handles signals and restarts; it runs no instruction of its
 * own on the way. Signals that arrive meanwhile are delivered to it.
 */
static int trap(struct lien_remote *remote, uint64_t deadline)
{
	long signal = 0;
	int status, err;

	if (remote->trapped)
		return 0;
	for (;;) {
		/* Repeat after each other stop, which cancels the request. */
		err = trace(remote, PTRACE_INTERRUPT, NULL, NULL);
		if (!err)
			err = resume(remote, PTRACE_CONT, signal);
		if (!err)
			err = await(remote, deadline, &status);
		if (err)
			return err;
		if (event_of(status) == PTRACE_EVENT_STOP) {
			remote->trapped = true;
			remote->group_stop = WSTOPSIG(status) != SIGTRAP;
			return 0;
		}
		signal = signal_of(status);
	}
}

static bool restarts(const struct user_regs_struct *regs)
{
	switch (-(long)regs->rax) {
	case ERESTARTSYS:
	case ERESTARTNOINTR:
	case ERESTARTNOHAND:
	case ERESTART_RESTARTBLOCK:
		return true;
	}
	return false;
}

/* Makes the kernel restart it, unless a signal has a handler. */
static void mend(struct user_regs_struct *regs)
{
	if ((long)regs->rax != -EINTR)
		return;
	for (size_t i = 0; i < sizeof(unfair) / sizeof(unfair[0]); i++)
		if ((long)regs->orig_rax == unfair[i])
			regs->rax = -ERESTARTNOHAND;
}

static int let_go(struct lien_remote *remote)
{
	remote->stopped = remote->trapped = remote->borrowed = false;
	return trace(remote, PTRACE_DETACH, NULL, NULL);
}

/* Stops it in a call that restarts as if nothing had happened, in the state in which it stopped. */
static int seize(struct lien_remote *remote, const struct lien_inject *inject, pid_t tid,
	uint64_t deadline, struct user_regs_struct *regs)
{
	int err;

	memset(remote, 0, sizeof(*remote));
	remote->inject = inject;
	remote->tid = tid;
	err = trace(remote, PTRACE_SEIZE, NULL, (void *)PTRACE_O_TRACESYSGOOD);
	if (err)
		return err;
	err = trap(remote, deadline);
	remote->borrowed_ns = lien_clock_ns();
	if (!err && remote->group_stop) {
		let_go(remote);
		return -EBUSY;
	}
	if (!err)
		err = trace(remote, PTRACE_GETREGS, NULL, regs);
	if (err)
		return err;
	remote->before = *regs;
	mend(&remote->before);
	if (remote->before.rax != regs->rax)
		trace(remote, PTRACE_SETREGS, NULL, &remote->before);
	return 0;
}

int lien_remote_stop(struct lien_remote *remote, const struct lien_inject *inject, pid_t tid)
{
	struct user_regs_struct regs;
	uint16_t code;
	int err;

	err = seize(remote, inject, tid, inject->deadline_ns, &regs);
	if (err)
		return err;
	if ((long)regs.orig_rax >= 0 && restarts(&remote->before) && regs.cs == USER_CS &&
		!lien_inject_read(inject, regs.rip - 2, &code, sizeof(code)) && code == 0x050f)
		return 0;
	let_go(remote);
	return -EAGAIN;
}

/* --- the frame ------------------------------------------------------------------------------- */

#define RED_ZONE     128
#define XSTATE_ALIGN 64

/* The kernel's struct rt_sigframe, without its unused end. */
struct frame {
	uint64_t restore_rt;
	uint64_t uc_flags;
	uint64_t uc_link;
	stack_t uc_stack;
	mcontext_t uc_mcontext;
	uint64_t uc_sigmask;
};

/* Tells the kernel where the frame has the extended registers. */
struct xstate_note {
	uint32_t magic1, extended_size;
	uint64_t features;
	uint32_t size;
};

#define XSTATE_NOTE	464
#define XSTATE_FEATURES 512
#define XSTATE_HEADER	64
#define XSTATE_MAGIC1	0x46505853U
#define XSTATE_MAGIC2	0x46505845U
#define UC_FP_XSTATE	1
#define UC_SS		6 /* UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS */

int lien_remote_write(struct lien_remote *remote, uint64_t address, const void *from, size_t size)
{
	const size_t whole = sizeof(uint64_t);
	size_t into, part;
	uint64_t word;
	int err = 0;

	while (size && !err) {
		into = address % whole;
		part = whole - into < size ? whole - into : size;
		if (part < whole &&
			lien_inject_read(remote->inject, address - into, &word, sizeof(word)))
			return -EFAULT;
		memcpy((char *)&word + into, from, part);
		err = trace(remote, PTRACE_POKEDATA, (void *)(address - into), (void *)word);
		address += part;
		from = (const char *)from + part;
		size -= part;
	}
	return err;
}

/* Returns the bytes in use. The kernel reserves room for registers that the thread may not have. */
static size_t used_xstate(const unsigned char *xstate)
{
	size_t size = XSTATE_FEATURES + XSTATE_HEADER;
	unsigned length, offset, unused, more;
	uint64_t features;

	memcpy(&features, xstate + XSTATE_FEATURES, sizeof(features));
	for (unsigned i = 2; i < 63; i++) {
		if (!(features >> i & 1))
			continue;
		__cpuid_count(0xd, i, length, offset, unused, more);
		(void)unused;
		(void)more;
		if (offset + length > size)
			size = offset + length;
	}
	return size;
}

/* Writes a frame like the kernel's for a signal handler into its stack, as if after the kernel had
 * prepared the restart of the system call. Returning through that restores the thread's registers,
 * vectors and blocked signals. Sets remote->frame. -E2BIG, -EFAULT: the stack has no room. */
static int write_frame(struct lien_remote *remote)
{
	const struct user_regs_struct *before = &remote->before;
	size_t size = used_xstate(remote->xstate);
	const uint32_t magic2 = XSTATE_MAGIC2;
	struct xstate_note note = {.magic1 = XSTATE_MAGIC1, .size = size};
	uint64_t xstate = before->rsp - RED_ZONE - size - sizeof(magic2);
	struct frame frame = {.restore_rt = remote->inject->calls.restore_rt};
	greg_t *regs = frame.uc_mcontext.gregs;
	unsigned char area[sizeof(remote->xstate)];
	int err;

	if (size > remote->xstate_size)
		return -E2BIG;
	xstate = xstate / XSTATE_ALIGN * XSTATE_ALIGN;
	remote->frame = (xstate - sizeof(frame)) / 16 * 16;
	note.extended_size = size + sizeof(magic2);
	memcpy(area, remote->xstate, size);
	memcpy(&note.features, area + XSTATE_FEATURES, sizeof(note.features));
	memcpy(area + XSTATE_NOTE, &note, sizeof(note));
	frame.uc_flags = UC_SS | UC_FP_XSTATE;
	frame.uc_sigmask = remote->signals;
	frame.uc_mcontext.fpregs = (void *)xstate;
	regs[REG_R8] = before->r8;
	regs[REG_R9] = before->r9;
	regs[REG_R10] = before->r10;
	regs[REG_R11] = before->r11;
	regs[REG_R12] = before->r12;
	regs[REG_R13] = before->r13;
	regs[REG_R14] = before->r14;
	regs[REG_R15] = before->r15;
	regs[REG_RDI] = before->rdi;
	regs[REG_RSI] = before->rsi;
	regs[REG_RBP] = before->rbp;
	regs[REG_RBX] = before->rbx;
	regs[REG_RDX] = before->rdx;
	regs[REG_RAX] = before->orig_rax;
	regs[REG_RCX] = before->rcx;
	regs[REG_RSP] = before->rsp;
	regs[REG_RIP] = before->rip - 2;
	regs[REG_EFL] = before->eflags;
	regs[REG_CSGSFS] = before->cs | before->ss << 48;
	err = lien_remote_write(remote, xstate, area, size);
	if (!err)
		err = lien_remote_write(remote, xstate + size, &magic2, sizeof(magic2));
	return err ? err : lien_remote_write(remote, remote->frame, &frame, sizeof(frame));
}

/* --- its work -------------------------------------------------------------------------------- */

/* It will begin at code, with the frame to return through. */
static int set_regs(struct lien_remote *remote, struct user_regs_struct *regs, uint64_t code)
{
	regs->orig_rax = -1;
	regs->rip = code;
	regs->eflags = FLAGS;
	remote->borrowed = true;
	return trace(remote, PTRACE_SETREGS, NULL, regs);
}

int lien_remote_borrow(struct lien_remote *remote)
{
	struct iovec xstate = {remote->xstate, sizeof(remote->xstate)};
	struct user_regs_struct regs = remote->before;
	uint64_t all = ~0ull, now = lien_clock_ns();
	int err;

	remote->deadline_ns = remote->inject->deadline_ns;
	if (remote->deadline_ns < now + BORROWED_NS)
		remote->deadline_ns = now + BORROWED_NS;
	err = trace(remote, PTRACE_GETREGSET, (void *)NT_X86_XSTATE, &xstate);
	remote->xstate_size = xstate.iov_len;
	if (!err)
		err = trace(remote, PTRACE_GETSIGMASK, (void *)sizeof(uint64_t), &remote->signals);
	if (!err)
		err = write_frame(remote);
	if (err)
		return err;
	/* Registers first: without them nothing would restore the signals. */
	regs.rsp = remote->frame + sizeof(uint64_t);
	err = set_regs(remote, &regs, remote->inject->calls.restore_rt);
	return err ? err : trace(remote, PTRACE_SETSIGMASK, (void *)sizeof(uint64_t), &all);
}

/* Waits for its next entry into a system call, or exit from one. May be repeated after
 * -ETIMEDOUT. */
static int step(struct lien_remote *remote, uint64_t deadline, struct user_regs_struct *regs)
{
	long signal = 0;
	int status, err;

	for (;;) {
		err = resume(remote, PTRACE_SYSCALL, signal);
		if (!err)
			err = await(remote, deadline, &status);
		if (err)
			return err;
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			return trace(remote, PTRACE_GETREGS, NULL, regs);
		/* A stop of the process takes effect when this thread is let go. */
		signal = signal_of(status);
		if (is_crash(signal))
			return -EFAULT;
	}
}

long lien_remote_syscall(struct lien_remote *remote, bool *failed, long number, uint64_t a0,
	uint64_t a1, uint64_t a2)
{
	struct user_regs_struct regs = remote->before;
	int err;

	err = trap(remote, remote->deadline_ns);
	regs.rsp = remote->frame;
	regs.rax = number;
	regs.rdi = a0;
	regs.rsi = a1;
	regs.rdx = a2;
	regs.r10 = 0x22; /* mmap(): private, anonymous */
	regs.r8 = -1;
	regs.r9 = 0;
	if (!err)
		err = set_regs(remote, &regs, remote->inject->syscall_ret);
	for (int stop = 0; stop < 2 && !err; stop++)
		err = step(remote, remote->deadline_ns, &regs);
	*failed = err;
	return err ? err : (long)regs.rax;
}

int lien_remote_run(
	struct lien_remote *remote, uint64_t code, uint64_t stack, uint64_t data, uint64_t until)
{
	uint64_t stuck = lien_clock_ns() + STUCK_NS;
	struct user_regs_struct regs = remote->before;
	int err;

	err = trap(remote, remote->deadline_ns);
	regs.rsp = stack;
	regs.r12 = data;
	if (!err)
		err = set_regs(remote, &regs, code);
	while (!err) {
		err = step(remote, stuck, &regs);
		if (!err && regs.rip == until)
			return 0;
		if (err == -ETIMEDOUT && regs.orig_rax == SYS_futex && (long)regs.rax == -ENOSYS)
			return -EDEADLK; /* it has entered that call and not returned */
		if (err == -ETIMEDOUT && stuck < remote->deadline_ns) {
			stuck += STUCK_NS;
			err = 0;
		}
	}
	return err;
}

/* Its number may have passed to another process before it was stopped; while it is stopped, no
 * thread of its process can start another program. */
static bool is_of_process(const struct lien_remote *remote, uint32_t inner)
{
	return lien_status_of(remote->inject->pid, remote->tid, "NSpid", 10) == inner &&
	       lien_inject_same(remote->inject);
}

int lien_remote_write_words(const struct lien_inject *inject, pid_t tid, uint32_t inner,
	const struct lien_remote_words *words, unsigned count)
{
	uint64_t deadline = lien_clock_ns() + STUCK_NS;
	struct user_regs_struct regs;
	struct lien_remote remote;
	int err;

	/* Even when late: work that has begun is finished. */
	if (deadline < inject->deadline_ns)
		deadline = inject->deadline_ns;
	err = seize(&remote, inject, tid, deadline, &regs);
	if (!err && !is_of_process(&remote, inner))
		err = -ESRCH;
	for (unsigned i = 0; i < count && !err; i++)
		err = lien_remote_write(&remote, words[i].address, words[i].from, words[i].size);
	if (remote.stopped)
		let_go(&remote);
	return err;
}

int lien_remote_release(struct lien_remote *remote, const struct lien_remote_words *words)
{
	struct iovec xstate = {remote->xstate, remote->xstate_size};
	int err;

	err = trap(remote, lien_clock_ns() + STUCK_NS);
	if (err)
		return err;
	/* Registers last, since they came first. */
	if (remote->borrowed) {
		trace(remote, PTRACE_SETREGSET, (void *)NT_X86_XSTATE, &xstate);
		trace(remote, PTRACE_SETSIGMASK, (void *)sizeof(uint64_t), &remote->signals);
	}
	err = trace(remote, PTRACE_SETREGS, NULL, &remote->before);
	if (!err && words)
		lien_remote_write(remote, words->address, words->from, words->size);
	return let_go(remote);
}
