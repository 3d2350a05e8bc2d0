// SPDX-License-Identifier: BSD-2-Clause
/*
 * What control libraries may send to the agent, while it restores, offloads and compares. The input
 * is a list of steps, each a byte and what that step takes.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include "tests/fuzz/fake_agent.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

union message {
	struct lien_wire_header header;
	char bytes[LIEN_WIRE_MESSAGE_MAX];
};

static struct fake_agent fake;
static int null;
static struct {
	struct lien_wire_header order; /* the last one; .length 0: none yet */
	struct lien_wire_item items[8];
	unsigned items_count; /* that were staged */
} rank[FAKE_RANKS];

static const uint8_t *in;
static size_t left;

static const char *const asked[] = {
	"{\"op\":\"offload\"}\n",
	"{\"op\":\"offload\",\"owner\":\"all\",\"timeout_ms\":500}\n",
	"{\"op\":\"restore\"}\n",
	"{\"op\":\"compare\"}\n",
	"{\"op\":\"compare\",\"repair\":true}\n",
	"{\"op\":\"ps\"}\n{\"op\":\"status\"}\n",
	"{\"op\":\"mem\",\"by\":\"owner\"}\n{\"op\":\"check\"}\n",
	"{\"op\":\"detach\"}\n",
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	fake_agent_start(&fake);
	return 0;
}

static size_t take(void *to, size_t size)
{
	size_t n = size < left ? size : left;

	memset(to, 0, size);
	memcpy(to, in, n);
	in += n;
	left -= n;
	return n;
}

static uint8_t take_byte(void)
{
	uint8_t byte;

	take(&byte, 1);
	return byte;
}

/* The orders that the agent has sent. */
static void take_orders(unsigned r)
{
	static union message message;
	int fds[LIEN_WIRE_FDS_MAX];
	unsigned count, i;
	ssize_t n;

	while ((n = lien_pass_receive(fake.control[r], &message, sizeof(message), fds, &count,
			MSG_DONTWAIT)) > 0) {
		while (count)
			close(fds[--count]);
		if (n < (ssize_t)sizeof(message.header) || message.header.length != (size_t)n)
			abort();
		rank[r].order = message.header;
		if (message.header.type != LIEN_WIRE_STAGE)
			continue;
		n = (n - sizeof(message.header)) / sizeof(rank[r].items[0]);
		if (message.header.flags & LIEN_WIRE_FIRST)
			rank[r].items_count = 0;
		for (i = 0; i < n && rank[r].items_count < 8; i++)
			memcpy(&rank[r].items[rank[r].items_count++],
				message.bytes + sizeof(message.header) +
					i * sizeof(struct lien_wire_item),
				sizeof(struct lien_wire_item));
	}
}

static void reply(unsigned r, union message *message, size_t body, unsigned fds_count)
{
	struct iovec part = {message, sizeof(message->header) + body};
	int fds[LIEN_WIRE_FDS_MAX];
	unsigned i;

	message->header.seq = rank[r].order.seq;
	message->header.length = part.iov_len;
	for (i = 0; i < fds_count; i++)
		fds[i] = null;
	lien_pass_send(fake.control[r], &part, 1, fds, fds_count);
}

/* As a control library without any trouble would. */
static void reply_well(unsigned r)
{
	static union message message;
	struct lien_wire_share *shares = (void *)(message.bytes + sizeof(message.header));
	struct lien_wire_hello hello = {.version = LIEN_WIRE_VERSION, .items = 1, .bytes = 1};
	unsigned i, n = 0;
	size_t body = 0;

	memset(&message.header, 0, sizeof(message.header));
	message.header.type = rank[r].order.type;
	message.header.flags = LIEN_WIRE_LAST;
	switch (message.header.type) {
	case LIEN_WIRE_HELLO:
		body = sizeof(hello);
		memcpy(shares, &hello, body);
		break;
	case LIEN_WIRE_LIST:
		body = rank[r].items_count * sizeof(rank[r].items[0]);
		memcpy(shares, rank[r].items, body);
		break;
	case LIEN_WIRE_EXPORT:
		for (i = 0; i < rank[r].items_count; i++)
			if (rank[r].items[i].flags & LIEN_WIRE_SHARED)
				shares[n++].token = rank[r].items[i].token;
		body = n * sizeof(*shares);
		break;
	case LIEN_WIRE_WALK:
		message.header.arg2 = 1000;
		break;
	}
	/* The body of these comes before the last reply. */
	if (body && message.header.type != LIEN_WIRE_HELLO) {
		message.header.flags = 0;
		reply(r, &message, body, n);
		message.header.flags = LIEN_WIRE_LAST;
		body = 0;
	}
	reply(r, &message, body, 0);
}

static void reply_made_up(unsigned r)
{
	static union message message;
	unsigned fds_count = take_byte() % 4;
	size_t body = take_byte() * 8;

	memset(&message.header, 0, sizeof(message.header));
	message.header.type = rank[r].order.type;
	message.header.flags = take_byte();
	if (message.header.flags & 0x80)
		message.header.type = take_byte();
	message.header.result = (int8_t)take_byte();
	message.header.arg = take_byte() * (uint64_t)LIEN_WIRE_STEP;
	message.header.arg2 = take_byte();
	message.header.arena_bytes = message.header.arg2 << 56 | message.header.arg;
	message.header.arena_used = message.header.arg;
	if (message.header.flags & 0x40) /* no end of the string */
		memset(message.header.text, 'x', sizeof(message.header.text));
	take(message.bytes + sizeof(message.header), body);
	reply(r, &message, body, fds_count);
}

/* What this rank had staged, or what the other one had, with one byte changed. */
static void reply_changed(unsigned r)
{
	static union message message;
	unsigned from = take_byte() % FAKE_RANKS;
	size_t body = rank[from].items_count * sizeof(rank[from].items[0]), at;

	memset(&message.header, 0, sizeof(message.header));
	message.header.type = rank[r].order.type;
	memcpy(message.bytes + sizeof(message.header), rank[from].items, body);
	take(&at, 2);
	at &= 0xffff;
	if (at < body)
		message.bytes[sizeof(message.header) + at] = take_byte();
	reply(r, &message, body, 0);
}

static void send_raw(unsigned r)
{
	char bytes[256];
	size_t n = take_byte();

	n = take(bytes, n);
	send(fake.control[r], bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void end_process(unsigned r)
{
	struct lien_process *process = lien_graph_process(fake.agent.graph, fake.pid[r]);
	struct lien_event event;

	if (!process)
		return;
	event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_EXIT);
	lien_agent_event(&fake.agent, &event);
}

static void step(int client)
{
	uint8_t what = take_byte();
	unsigned r = what >> 7;
	const char *line;

	switch (what % 10) {
	case 0:
	case 1:
		reply_well(r);
		break;
	case 2:
		reply_well(0);
		reply_well(1);
		break;
	case 3:
		reply_made_up(r);
		break;
	case 4:
		reply_changed(r);
		break;
	case 5:
		send_raw(r);
		break;
	case 6:
		line = asked[take_byte() % (sizeof(asked) / sizeof(asked[0]))];
		send(client, line, strlen(line), MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	case 7:
		fake_now += take_byte() * 100000000ull;
		break;
	case 8:
		if (take_byte() == 1)
			end_process(r);
		break;
	case 9:
		if (take_byte() == 1) /* the child's cannot be made anew */
			shutdown(fake.control[0], SHUT_RDWR);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char answers[65536];
	unsigned r, steps = 0;
	int client;

	in = data;
	left = size;
	memset(rank, 0, sizeof(rank));
	fake_agent_fill(&fake, true);
	client = fake_agent_connect(&fake);
	while (left && steps++ < 200) {
		for (r = 0; r < FAKE_RANKS; r++)
			take_orders(r);
		step(client);
		fake_agent_run(&fake);
		while (recv(client, answers, sizeof(answers), MSG_DONTWAIT) > 0)
			;
	}
	close(client);
	fake_agent_clear(&fake);
	close(fake.control[0]);
	return 0;
}
