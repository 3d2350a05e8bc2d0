// SPDX-License-Identifier: BSD-2-Clause
/*
 * PyTorch's watchdog ends a process whose collective takes longer than its process group's limit
 * (10 minutes by default): a thread compares the time since the collective began with the limit,
 * and does so even if the collective has ended (c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(),
 * PyTorch 2.11). A thread that is held at a collective for as long as memory is away has begun it
 * before.
 *
 * So after a restore the time that the memory was away does not count there: this library exports
 * std::chrono::steady_clock::now(), and returns an earlier time to that one caller. This ends when
 * as much time has passed as the memory was away: the watchdog finds a hanging collective at most
 * that much later.
 *
 * Thread-safe. away() and back() are for the control thread.
 */
#include <stdint.h>

#include <lien/clock.h>

#include "control/driver/gate.h"
#include "control/driver/genuine.h"
#include "control/driver/thread.h"

#define LIBRARY "libtorch_cuda.so"

/* WorkNCCL::checkTimeout(std::optional<std::chrono::milliseconds>), as PyTorch 2.11 exports it. In
 * a library that has no such function all time counts. */
#define CHECK_TIMEOUT                                                                              \
	"_ZN4c10d16ProcessGroupNCCL8WorkNCCL12checkTimeoutESt8optionalINSt6chrono8durationIlSt5"   \
	"ratioILl1ELl1000EEEEE"

static uint64_t left_ns LIEN_ZERO_IN_CHILD; /* when the memory went away; 0: it is here */
static struct {
	uint64_t away_ns; /* what does not count; 0: everything counts */
	uint64_t end_ns;  /* until then */
	struct lien_genuine_range code;
} pause LIEN_ZERO_IN_CHILD;

void lien_watchdog_away(void)
{
	if (!left_ns)
		left_ns = lien_clock_ns();
}

void lien_watchdog_back(void)
{
	const uint64_t now = lien_clock_ns();
	uint64_t away = left_ns ? now - left_ns : 0;

	left_ns = 0;
	if (!away || !lien_genuine_range_of(LIBRARY, CHECK_TIMEOUT, &pause.code))
		return;
	if (now < pause.end_ns)
		away += pause.away_ns;
	__atomic_store_n(&pause.end_ns, now + away, __ATOMIC_RELAXED);
	__atomic_store_n(&pause.away_ns, away, __ATOMIC_RELEASE);
}

/* std::chrono::steady_clock::now(), which returns nanoseconds */
__attribute__((visibility("default"))) int64_t _ZNSt6chrono3_V212steady_clock3nowEv(void)
{
	const uintptr_t caller = (uintptr_t)__builtin_return_address(0);
	const uint64_t away = __atomic_load_n(&pause.away_ns, __ATOMIC_ACQUIRE);
	const uint64_t now = lien_clock_ns();

	if (!away || caller - pause.code.base >= pause.code.bytes)
		return now;
	return now < __atomic_load_n(&pause.end_ns, __ATOMIC_RELAXED) ? now - away : now;
}
