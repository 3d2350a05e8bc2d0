/* SPDX-License-Identifier: BSD-2-Clause */
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
#ifndef LIEN_CONTROL_WATCHDOG_H
#define LIEN_CONTROL_WATCHDOG_H

/* The process's memory goes away. */
void lien_watchdog_away(void);
/* It is back. */
void lien_watchdog_back(void);

#endif
