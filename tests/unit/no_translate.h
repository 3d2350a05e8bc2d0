/* SPDX-License-Identifier: BSD-2-Clause */
/* Instead of control/translate.c, where nobody has cached a driver function, and of
 * control/start.c, where nobody starts a thread. */
#ifndef TEST_NO_TRANSLATE_H
#define TEST_NO_TRANSLATE_H

#include <control/control.h>
#include <control/translate.h>

void lien_translate_prepare(const struct lien_driver *driver)
{
	(void)driver;
}

void lien_translate_hold_all(int all)
{
	(void)all;
}

int lien_translate_idle(void)
{
	return 1;
}

int lien_translate_settle(void)
{
	return 1;
}

void lien_translate_install(int always)
{
	(void)always;
}

int lien_translate_remove(void)
{
	return 1;
}

int lien_start_forbid(void)
{
	return 0;
}

void lien_start_allow(void)
{
}

int lien_start_undo(void **handle)
{
	*handle = (void *)1;
	return -1;
}

#endif
