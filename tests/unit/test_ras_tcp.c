// SPDX-License-Identifier: BSD-2-Clause
/* Whose the other end of a connection is, who listens, and where: real sockets of this process. */
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent/join/ras_ask.h"

static int listener, client, server;
static uint16_t port;

static struct sockaddr_storage loopback(int family, socklen_t *size)
{
	struct sockaddr_storage address = {.ss_family = family};

	if (family == AF_INET)
		((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_loopback;
	*size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	return address;
}

/* False: this machine has no such addresses. */
static bool connected(int family)
{
	socklen_t size;
	struct sockaddr_storage address = loopback(family, &size);

	listener = socket(family, SOCK_STREAM, 0);
	client = socket(family, SOCK_STREAM, 0);
	if (listener < 0 || client < 0 || bind(listener, (struct sockaddr *)&address, size))
		return false;
	assert_int_equal(listen(listener, 8), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
	port = ntohs(((struct sockaddr_in *)&address)->sin_port);
	assert_int_equal(connect(client, (struct sockaddr *)&address, size), 0);
	server = accept(listener, NULL, NULL);
	assert_true(server >= 0);
	return true;
}

static void test_family(int family)
{
	struct lien_ras_door doors[LIEN_RAS_DOORS_MAX];
	struct lien_ras_host hosts[LIEN_RAS_ADDRESS_MAX], own;
	bool others, found = false;
	unsigned count, i;

	if (!connected(family))
		skip();
	assert_true(lien_tcp_other_end_is(client, getpid(), getuid()));
	assert_true(lien_tcp_other_end_is(server, getpid(), getuid()));
	assert_false(lien_tcp_other_end_is(client, getpid(), getuid() + 1));
	assert_false(lien_tcp_other_end_is(listener, getpid(), getuid()));
	assert_int_equal(lien_ras_doors(getpid(), getuid(), port, doors, &others), 1);
	assert_false(others);
	assert_int_equal(doors[0].address.ss_family, family);
	assert_int_equal(lien_ras_doors(getpid(), getuid() + 1, port, doors, &others), 0);
	assert_true(others);
	own = (struct lien_ras_host){.family = family == AF_INET ? 4 : 6};
	inet_pton(family, family == AF_INET ? "127.0.0.1" : "::1", own.address);
	count = lien_ras_own_addresses(client, getpid(), hosts);
	for (i = 0; i < count; i++)
		found |= !memcmp(&hosts[i], &own, sizeof(own));
	assert_true(found);
	close(server);
	close(client);
	close(listener);
	assert_int_equal(lien_ras_doors(getpid(), getuid(), port, doors, &others), 0);
	assert_false(others);
}

static void test_v4(void **state)
{
	(void)state;
	test_family(AF_INET);
}

static void test_v6(void **state)
{
	(void)state;
	test_family(AF_INET6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_v4), cmocka_unit_test(test_v6)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
