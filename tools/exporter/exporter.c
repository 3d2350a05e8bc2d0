// SPDX-License-Identifier: BSD-2-Clause
/*
 * lien-exporter: serves `lien metrics` over HTTP. It is a program of its own, so that no HTTP is
 * spoken in the agent, which is root, and so that nobody else needs libmicrohttpd.
 */
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/client.h>

#include "tools/cli/options.h"
#include "tools/text/complain.h"
#include "tools/text/openmetrics.h"
#include "tools/text/output.h"

#define ADDRESS	    "127.0.0.1"
#define PORT	    "9485"
#define CONNECTIONS 32
#define IDLE_S	    10
/* Prometheus gives up after 10 s, unless its scrape_timeout says otherwise. */
#define TIMEOUT_MS     5000
#define TIMEOUT_MS_MAX 3600000

static const char *const examples[] = {"lien-exporter", "http://127.0.0.1:9485/metrics",
	"lien-exporter 0.0.0.0:9100", "for other machines, on another port",
	"lien-exporter [::1]:9485", "IPv6", NULL};

static const struct lien_usage usage = {
	.command = "lien-exporter",
	.arguments = "[ADDRESS[:PORT]]",
	.summary =
		"Serves the figures of `lien metrics` at /metrics for Prometheus, and asks the "
		"agent once for each scrape. Without an agent the answer is 503, and says why. "
		"It needs no rights; what its user may not see, it does not serve: see `lien agent "
		"--metrics-user`. Ends at SIGTERM or SIGINT.",
	.max = 1,
	.examples = examples,
};

struct exporter {
	const char *socket; /* NULL: the default */
	unsigned timeout_ms;
};

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status, const char *type,
	char *text, size_t size, enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(size, text, mode);
	enum MHD_Result result;

	if (!response) {
		if (mode == MHD_RESPMEM_MUST_FREE)
			free(text);
		return MHD_NO;
	}
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result reply_line(
	struct MHD_Connection *connection, unsigned status, const char *line)
{
	char *text;

	if (asprintf(&text, "%s\n", line) < 0)
		return MHD_NO;
	return reply(connection, status, "text/plain; charset=utf-8", text, strlen(text),
		MHD_RESPMEM_MUST_FREE);
}

/* Scrapers that know OpenMetrics say so; a browser does not. */
static enum lien_metrics_format format_for(struct MHD_Connection *connection)
{
	const char *accept =
		MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);

	return accept && strstr(accept, "application/openmetrics-text") ? LIEN_METRICS_OPEN
									: LIEN_METRICS_PROMETHEUS;
}

static enum MHD_Result reply_metrics(struct MHD_Connection *connection, const json_t *metrics)
{
	const enum lien_metrics_format format = format_for(connection);
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return MHD_NO;
	lien_print_metrics(out, metrics, format);
	if (fclose(out)) {
		free(text);
		return MHD_NO;
	}
	return reply(connection, MHD_HTTP_OK,
		format == LIEN_METRICS_OPEN ? LIEN_METRICS_OPEN_TYPE : LIEN_METRICS_PROMETHEUS_TYPE,
		text, size, MHD_RESPMEM_MUST_FREE);
}

/* One request on a connection of its own: the agent may have been started anew since the last. */
static enum MHD_Result scrape(const struct exporter *exporter, struct MHD_Connection *connection)
{
	struct lien_client *client = lien_client_new(exporter->socket);
	json_t *request = json_pack("{s:s}", "op", "metrics"), *metrics = NULL;
	enum MHD_Result result = MHD_NO;

	if (client && request) {
		lien_client_timeout(client, exporter->timeout_ms);
		if (lien_client_call(client, request, &metrics))
			result = reply_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
				lien_client_error(client));
		else
			result = reply_metrics(connection, metrics);
	}
	json_decref(metrics);
	json_decref(request);
	lien_client_free(client);
	return result;
}

/* libmicrohttpd calls this first when it has the headers, and again for each part of a body. */
static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *url,
	const char *method, const char *version, const char *body, size_t *body_size, void **state)
{
	static int seen;

	(void)version;
	(void)body;
	if (!*state) {
		*state = &seen;
		return MHD_YES;
	}
	if (*body_size) {
		*body_size = 0;
		return MHD_YES;
	}
	if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
		return reply_line(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD");
	if (strcmp(url, "/metrics"))
		return reply_line(connection, MHD_HTTP_NOT_FOUND, "the metrics are at /metrics");
	return scrape(context, connection);
}

/* Takes "127.0.0.1", "127.0.0.1:9485", "::1" or "[::1]:9485" apart; changes the text. */
static void split(char *text, const char **address, const char **port)
{
	char *colon = strrchr(text, ':'), *bracket = strchr(text, ']');

	*address = text;
	*port = PORT;
	if (text[0] == '[' && bracket) {
		*address = text + 1;
		*bracket = '\0';
		if (bracket[1] == ':')
			*port = bracket + 2;
		else if (bracket[1])
			*port = "";
	} else if (colon && strchr(text, ':') == colon) {
		*colon = '\0';
		*port = colon + 1;
	}
}

/* Returns an exit code, after a message. */
static int find_address(const char *text, struct addrinfo **found)
{
	const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
		.ai_socktype = SOCK_STREAM};
	char *copy = lien_format("%s", text);
	const char *address, *port;
	unsigned long number;
	int code = LIEN_EXIT_OK;

	split(copy, &address, &port);
	if ((strcmp(port, "0") && !lien_parse_number(port, UINT16_MAX, &number)) ||
		getaddrinfo(address, port, &hints, found))
		code = lien_usage_error(
			&usage, "'%s' is not an address such as 127.0.0.1:9485", text);
	free(copy);
	return code;
}

static int wait_for_signal(void)
{
	sigset_t set;
	int signal;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	return sigwait(&set, &signal) ? LIEN_EXIT_FAILURE : LIEN_EXIT_OK;
}

/* Before any thread is made: they inherit it. */
static void block_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static int serve(struct exporter *exporter, const char *text, const struct addrinfo *address)
{
	const unsigned v6 = address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0;
	const union MHD_DaemonInfo *info;
	struct MHD_Daemon *daemon;
	char host[NI_MAXHOST];
	int code;

	block_signals();
	errno = 0;
	daemon = MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | v6, 0, NULL,
		NULL, answer, exporter, MHD_OPTION_SOCK_ADDR, address->ai_addr,
		MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
		MHD_OPTION_END);
	if (!daemon)
		return lien_complain(usage.command, "cannot listen on %s: %s", text,
			errno ? strerror(errno) : "libmicrohttpd does not say why");
	info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
	getnameinfo(
		address->ai_addr, address->ai_addrlen, host, sizeof(host), NULL, 0, NI_NUMERICHOST);
	printf(v6 ? "http://[%s]:%u/metrics\n" : "http://%s:%u/metrics\n", host,
		info ? info->port : 0);
	fflush(stdout);
	code = wait_for_signal();
	MHD_stop_daemon(daemon);
	return code;
}

int main(int argc, char **argv)
{
	struct exporter exporter = {0};
	unsigned long timeout = TIMEOUT_MS;
	const struct lien_option options[] = {
		{"timeout", LIEN_OPTION_NUMBER, &timeout, "MS",
			"how long the agent may take for an answer (default 5000)", TIMEOUT_MS_MAX},
		LIEN_SOCKET_OPTION(&exporter.socket), {}};
	struct addrinfo *address;
	const char *text;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	exporter.timeout_ms = timeout;
	text = argc ? argv[0] : ADDRESS;
	code = find_address(text, &address);
	if (code)
		return code;
	code = serve(&exporter, text, address);
	freeaddrinfo(address);
	return code;
}
