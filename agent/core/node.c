// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core/jobs.h"
#include "loader/nvml.h"
#include "loader/discover/untrusted.h"

#define FRESH_NS	1000000000ull
#define ABSENT_NS	30000000000ull /* before looking for it again */
#define INFORMATION_MAX 4096

struct asking {
	struct lien_job job;
	struct lien_node node;
	uint64_t t;
};

static void ask_nvml(struct lien_job *job)
{
	struct asking *asking = (struct asking *)job;

	asking->t = lien_now_ns();
	lien_nvml_read(&asking->node);
}

static void asking_free(struct lien_job *job)
{
	struct asking *asking = (struct asking *)job;

	lien_node_clear(&asking->node);
	free(asking);
}

static void nvml_answered(struct lien_agent *agent, struct lien_job *job)
{
	struct asking *asking = (struct asking *)job;
	struct lien_node before = agent->node.now;

	agent->node.now = asking->node;
	agent->node.t_now = asking->t;
	asking->node = before;
}

static bool is_fresh(const struct lien_agent *agent)
{
	const bool nvml = agent->node.now.nvml;

	if (!agent->node.t_now || (nvml && agent->node.t_now < agent->node.t_outdated))
		return false;
	return lien_now_ns() - agent->node.t_now < (nvml ? FRESH_NS : ABSENT_NS);
}

bool lien_node_refresh(struct lien_agent *agent)
{
	struct asking *asking;

	if (agent->is_copy || lien_jobs_pending(agent, LIEN_JOB_NVML) || is_fresh(agent))
		return lien_jobs_pending(agent, LIEN_JOB_NVML);
	asking = calloc(1, sizeof(*asking));
	if (!asking)
		return false;
	asking->job = (struct lien_job){.kind = LIEN_JOB_NVML,
		.work = ask_nvml,
		.done = nvml_answered,
		.drop = asking_free};
	return !lien_job_start(agent, &asking->job);
}

const struct lien_node *lien_node_now(struct lien_agent *agent)
{
	agent->node.now.age_ms = (lien_now_ns() - agent->node.t_now) / 1e6;
	return &agent->node.now;
}

/* The GPUs that the process's container exposes, in the order of their PCI addresses. */
static unsigned gpus_of(uint32_t pid, struct lien_uuid *gpus, unsigned max)
{
	char folder[64], path[400], text[INFORMATION_MAX], **names = NULL;
	unsigned count = 0;
	const char *line;
	int n, i;

	snprintf(folder, sizeof(folder), "/proc/%u/root/proc/driver/nvidia/gpus", pid);
	n = lien_untrusted_list(folder, &names, max);
	for (i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/%s/information", folder, names[i]);
		line = lien_untrusted_read(path, text, sizeof(text)) > 0 ? strstr(text, "GPU UUID:")
									 : NULL;
		if (!line)
			continue;
		line += strlen("GPU UUID:");
		line += strspn(line, " \t");
		count += lien_uuid_parse(line, strcspn(line, " \t\n"), &gpus[count]) == 16;
	}
	free(names);
	return count;
}

void lien_node_ordinals(struct lien_process *process, const struct lien_ordinals *ordinals)
{
	struct lien_ordinals *own;

	if (process->ordinals && process->ordinals->by_driver)
		return;
	own = malloc(sizeof(*own));
	if (!own)
		return;
	*own = *ordinals;
	free((void *)process->ordinals);
	process->ordinals = own;
}

void lien_node_process(struct lien_process *process)
{
	struct lien_uuid gpus[LIEN_ORDINALS_MAX];
	struct lien_ordinals ordinals;
	const char *order, *visible;
	unsigned count;
	size_t size;
	char *text;

	text = lien_environ_read(process->pid, &size);
	if (!text)
		return;
	count = gpus_of(process->pid, gpus, LIEN_ORDINALS_MAX);
	order = lien_environ_variable(text, size, "CUDA_DEVICE_ORDER");
	visible = lien_environ_variable(text, size, "CUDA_VISIBLE_DEVICES");
	if (lien_visible_devices(
		    visible, order && !strcmp(order, "PCI_BUS_ID"), gpus, count, &ordinals))
		lien_node_ordinals(process, &ordinals);
	free(text);
}
