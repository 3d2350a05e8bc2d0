// SPDX-License-Identifier: BSD-2-Clause
#include "agent/graph/viewer.h"

bool lien_viewer_sees(const struct lien_viewer *viewer, const struct lien_process *process)
{
	return !viewer || !viewer->one_user || (process && process->uid == viewer->uid);
}

static bool sees_holder(const struct lien_viewer *viewer, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (lien_viewer_sees(viewer, holding->process))
			return true;
	return false;
}

bool lien_viewer_sees_owner(
	const struct lien_viewer *viewer, const struct lien_allocation *allocation)
{
	if (lien_viewer_sees(viewer, allocation->owner))
		return true;
	return !allocation->owner && sees_holder(viewer, allocation);
}

bool lien_viewer_sees_part(
	const struct lien_viewer *viewer, const struct lien_allocation *allocation)
{
	return lien_viewer_sees(viewer, allocation->owner) || sees_holder(viewer, allocation);
}
