/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent's requirements on this machine. They are checked before anything is loaded, so that the
 * first error names the cause and the remedy. `lien doctor` shows the same list.
 */
#ifndef LIEN_FEATURES_H
#define LIEN_FEATURES_H

enum lien_feature_status {
	LIEN_FEATURE_OK,
	LIEN_FEATURE_WARN, /* works, with the limits that .remedy names */
	LIEN_FEATURE_FAIL, /* the agent cannot work */
};

struct lien_feature {
	const char *name; /* one word */
	enum lien_feature_status status;
	char found[160];
	char remedy[200]; /* "" when nothing needs to be done */
};

#define LIEN_FEATURES_MAX 16

/* "ok", "warn", "FAIL". */
const char *lien_feature_status_name(enum lien_feature_status status);

/* Fills in at most max entries and returns their number. Changes nothing on the machine. */
int lien_features_check(struct lien_feature *out, unsigned max);

/* For checks made elsewhere in the same manner: sets the status, then the texts, printf-like. */
void lien_feature_found(struct lien_feature *feature, enum lien_feature_status status,
	const char *format, ...) __attribute__((format(printf, 3, 4)));
void lien_feature_remedy(struct lien_feature *feature, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
