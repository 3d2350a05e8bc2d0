/* SPDX-License-Identifier: BSD-2-Clause */
/* Streams, events and captures: the rules that others feel. */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>

#include "test_softcuda.h"

#define GLOBAL	     CU_STREAM_CAPTURE_MODE_GLOBAL
#define THREAD_LOCAL CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED	     CU_STREAM_CAPTURE_MODE_RELAXED

static CUstream new_stream(void)
{
	CUstream stream = NULL;

	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static CUstreamCaptureStatus capture_status(CUstream stream)
{
	CUstreamCaptureStatus status = 99;

	OK(cuStreamIsCapturing(stream, &status));
	return status;
}

static void test_streams(void **state)
{
	CUevent event, stale;
	CUstream stream;

	(void)state;
	stream = new_stream();
	OK(cuStreamQuery(stream));
	OK(cuStreamSynchronize(stream));
	OK(cuStreamSynchronize(NULL));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuEventRecord(event, stream));
	OK(cuEventQuery(event));
	OK(cuEventSynchronize(event));
	OK(cuStreamWaitEvent(NULL, event, 0));
	FAILS(INVALID_HANDLE, cuEventRecord((CUevent)stream, stream));
	FAILS(INVALID_HANDLE, cuStreamQuery((CUstream)event));
	stale = event;
	OK(cuEventDestroy_v2(event));
	FAILS(INVALID_HANDLE, cuEventQuery(stale));
	FAILS(INVALID_VALUE, cuStreamCreate(&stream, 8));
	OK(cuStreamDestroy_v2(stream));
	FAILS(INVALID_HANDLE, cuStreamQuery(stream));
	FAILS(INVALID_HANDLE, cuMemsetD8Async(0, 0, 0, stream));
}

static void test_capture(void **state)
{
	CUstream stream = new_stream(), other = new_stream();
	unsigned char byte = 1;
	CUgraph graph, into;
	CUdeviceptr ptr;
	CUevent event;

	(void)state;
	OK(cuMemAlloc_v2(&ptr, 16));
	OK(cuMemsetD8_v2(ptr, 1, 16));
	OK(cuEventCreate(&event, 0));
	FAILS(STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(NULL, RELAXED));
	FAILS(INVALID_VALUE, cuStreamBeginCapture_v2(stream, 9));
	FAILS(ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
	assert_int_equal(capture_status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuStreamBeginCapture_v2(stream, GLOBAL));
	assert_int_equal(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
	FAILS(ILLEGAL_STATE, cuStreamBeginCapture_v2(stream, GLOBAL));
	OK(cuMemsetD8Async(ptr, 9, 16, stream)); /* captured, not executed */
	FAILS(INVALID_VALUE, cuMemsetD8Async(ptr, 9, 17, stream));
	/* Another stream joins by an event, and leaves with the capture. */
	OK(cuEventRecord(event, stream));
	OK(cuStreamWaitEvent(other, event, 0));
	assert_int_equal(capture_status(other), CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(cuMemsetD8Async(ptr, 9, 16, other));
	FAILS(STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
	OK(cuStreamEndCapture(stream, &graph));
	assert_non_null(graph);
	assert_int_equal(capture_status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
	assert_int_equal(capture_status(other), CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuEventQuery(event));
	OK(cuMemcpyDtoH_v2(&byte, ptr, 1));
	assert_int_equal(byte, 1);
	OK(cuMemsetD8Async(ptr, 9, 16, stream));
	OK(cuMemcpyDtoH_v2(&byte, ptr, 1));
	assert_int_equal(byte, 9);
	OK(cuGraphDestroy(graph));
	FAILS(INVALID_VALUE, cuGraphDestroy(graph));

	OK(cuGraphCreate(&into, 0));
	OK(cuStreamBeginCaptureToGraph(stream, into, NULL, NULL, 0, RELAXED));
	OK(cuStreamEndCapture_ptsz(stream, &graph));
	assert_ptr_equal(graph, into);
	OK(cuGraphDestroy(into));
	/* A stream that goes away takes its capture along. */
	OK(cuStreamBeginCapture_v2_ptsz(stream, GLOBAL));
	OK(cuStreamDestroy_v2(stream));
	OK(cuCtxSynchronize());
	OK(cuStreamDestroy_v2(other));
	OK(cuEventDestroy_v2(event));
	OK(cuMemFree_v2(ptr));
}

enum unsafe {
	ALLOC,
	ALLOC_ASYNC,
	COPY,
	SYNCHRONIZE,
	QUERY,
	HOST_ALLOC,
	UNSAFE_COUNT,
};

struct attempt {
	enum unsafe call;
	CUstreamCaptureMode mode;
	CUcontext context;
	CUstream idle;
	CUresult result;
};

/* In a thread of its own: its mode must not leak into other attempts. */
static void *attempt(void *arg)
{
	struct attempt *attempt = arg;
	CUstreamCaptureMode mode = attempt->mode;
	CUdeviceptr ptr = 0;
	void *host = NULL;
	char byte;

	CHECK(!cuCtxSetCurrent(attempt->context));
	CHECK(!cuThreadExchangeStreamCaptureMode(&mode) && mode == GLOBAL);
	switch (attempt->call) {
	case ALLOC:
		attempt->result = cuMemAlloc_v2(&ptr, 1);
		if (ptr)
			CHECK(!cuMemFree_v2(ptr));
		break;
	case ALLOC_ASYNC:
		attempt->result = cuMemAllocAsync(&ptr, 1, attempt->idle);
		if (ptr)
			CHECK(!cuMemFreeAsync(ptr, attempt->idle));
		break;
	case COPY:
		attempt->result = cuMemcpyDtoH_v2(&byte, 16, 0);
		break;
	case SYNCHRONIZE:
		attempt->result = cuCtxSynchronize();
		break;
	case QUERY:
		attempt->result = cuStreamQuery(attempt->idle);
		break;
	default:
		attempt->result = cuMemHostAlloc(&host, 1, 0);
		if (host)
			CHECK(!cuMemFreeHost(host));
	}
	return NULL;
}

/* The thread that captures, in this mode; another one tries something unsafe, in that mode. */
static void check_other_thread(CUstreamCaptureMode capture, CUstreamCaptureMode other, bool fails)
{
	CUstream stream = new_stream(), idle = new_stream();
	struct attempt job = {.mode = other, .idle = idle};
	pthread_t thread;
	CUgraph graph;

	OK(cuCtxGetCurrent(&job.context));
	for (int call = 0; call < UNSAFE_COUNT; call++) {
		OK(cuStreamBeginCapture_v2(stream, capture));
		job.call = call;
		assert_int_equal(pthread_create(&thread, NULL, attempt, &job), 0);
		pthread_join(thread, NULL);
		if (fails || call == SYNCHRONIZE) { /* that one in every mode (seen, 580.159) */
			assert_int_equal(job.result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
			assert_int_equal(
				capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
			FAILS(STREAM_CAPTURE_INVALIDATED, cuMemsetD8Async(0, 0, 0, stream));
			FAILS(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
			assert_null(graph);
		} else {
			assert_int_equal(job.result, CUDA_SUCCESS);
			assert_int_equal(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
			OK(cuStreamEndCapture(stream, &graph));
			OK(cuGraphDestroy(graph));
		}
	}
	OK(cuStreamDestroy_v2(stream));
	OK(cuStreamDestroy_v2(idle));
}

static void test_capture_modes(void **state)
{
	(void)state;
	check_other_thread(GLOBAL, GLOBAL, true);
	check_other_thread(GLOBAL, THREAD_LOCAL, false);
	check_other_thread(GLOBAL, RELAXED, false);
	check_other_thread(THREAD_LOCAL, GLOBAL, false);
	check_other_thread(THREAD_LOCAL, RELAXED, false);
	check_other_thread(RELAXED, GLOBAL, false);
}

static void check_own_thread(CUstreamCaptureMode capture, CUstreamCaptureMode mode, bool fails)
{
	CUstream stream = new_stream();
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr = 0;
	CUgraph graph;

	OK(cuThreadExchangeStreamCaptureMode(&mode));
	OK(cuStreamBeginCapture_v2(stream, capture));
	handle = make(PIECE, CU_MEM_HANDLE_TYPE_NONE); /* not one of the unsafe calls */
	OK(cuMemRelease(handle));
	assert_int_equal(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
	assert_int_equal(cuMemAlloc_v2(&ptr, 1),
		fails ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
	assert_int_equal(cuStreamEndCapture(stream, &graph),
		fails ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
	if (!fails) {
		OK(cuGraphDestroy(graph));
		OK(cuMemFree_v2(ptr));
	}
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	OK(cuStreamDestroy_v2(stream));
}

static void test_capture_own_thread(void **state)
{
	CUstreamCaptureMode bad = 7;

	(void)state;
	check_own_thread(GLOBAL, GLOBAL, true);
	check_own_thread(THREAD_LOCAL, GLOBAL, true);
	check_own_thread(THREAD_LOCAL, THREAD_LOCAL, true);
	check_own_thread(RELAXED, GLOBAL, false);
	check_own_thread(GLOBAL, RELAXED, false);
	FAILS(INVALID_VALUE, cuThreadExchangeStreamCaptureMode(&bad));
	FAILS(INVALID_VALUE, cuThreadExchangeStreamCaptureMode(NULL));
}

/* What asks after a stream or event that is being captured is a conflict in every mode. */
static void test_capture_conflicts(void **state)
{
	CUstreamCaptureMode mode = RELAXED;
	CUstream stream = new_stream();
	CUgraph graph;
	CUevent event;

	(void)state;
	OK(cuEventCreate(&event, 0));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	OK(cuStreamBeginCapture_v2(stream, RELAXED));
	FAILS(STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
	FAILS(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
	OK(cuStreamBeginCapture_v2(stream, RELAXED));
	OK(cuEventRecord(event, stream));
	FAILS(CAPTURED_EVENT, cuEventQuery(event));
	FAILS(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	OK(cuEventDestroy_v2(event));
	OK(cuStreamDestroy_v2(stream));
}

struct ending {
	CUstream stream;
	CUresult result;
};

static void *end_elsewhere(void *arg)
{
	struct ending *ending = arg;
	CUgraph graph;

	ending->result = cuStreamEndCapture(ending->stream, &graph);
	if (!ending->result)
		CHECK(!cuGraphDestroy(graph));
	return NULL;
}

static void test_capture_thread(void **state)
{
	struct ending ending = {.stream = new_stream()};
	pthread_t thread;
	CUgraph graph;

	(void)state;
	OK(cuStreamBeginCapture_v2(ending.stream, THREAD_LOCAL));
	assert_int_equal(pthread_create(&thread, NULL, end_elsewhere, &ending), 0);
	pthread_join(thread, NULL);
	assert_int_equal(ending.result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	OK(cuStreamEndCapture(ending.stream, &graph));
	OK(cuGraphDestroy(graph));
	OK(cuStreamBeginCapture_v2(ending.stream, RELAXED));
	assert_int_equal(pthread_create(&thread, NULL, end_elsewhere, &ending), 0);
	pthread_join(thread, NULL);
	assert_int_equal(ending.result, CUDA_SUCCESS);
	OK(cuStreamDestroy_v2(ending.stream));
}

struct waiter {
	pthread_t thread;
	CUcontext context;
	CUevent event;
	int call;
};

static void *wait_for_device(void *arg)
{
	struct waiter *waiter = arg;

	CHECK(!cuCtxSetCurrent(waiter->context));
	if (waiter->call == 0)
		CHECK(!cuCtxSynchronize());
	else if (waiter->call == 1)
		CHECK(!cuStreamSynchronize(NULL));
	else
		CHECK(!cuEventSynchronize(waiter->event));
	return NULL;
}

/* The devices are busy while the file is there: who queries is told, who waits waits. */
static void role_busy(int sock)
{
	const char *path = getenv("LIEN_SOFTCUDA_BUSY_FILE");
	struct waiter waiter[3] = {0};
	CUcontext context;
	CUevent event;

	(void)sock;
	CHECK(path);
	CHECK(!cuInit(0));
	use_device(0);
	CHECK(!cuCtxGetCurrent(&context));
	CHECK(!cuEventCreate(&event, 0) && !cuEventRecord(event, NULL));
	CHECK(!cuStreamQuery(NULL) && !cuEventQuery(event) && !cuCtxSynchronize());
	CHECK(!close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)));
	CHECK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
	CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
	for (int i = 0; i < 3; i++) {
		waiter[i] = (struct waiter){.context = context, .event = event, .call = i};
		CHECK(!pthread_create(&waiter[i].thread, NULL, wait_for_device, &waiter[i]));
	}
	usleep(50000); /* a wait that does not wait is seen here; one that does is never blamed */
	for (int i = 0; i < 3; i++)
		CHECK(pthread_tryjoin_np(waiter[i].thread, NULL));
	CHECK(!unlink(path));
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_join(waiter[i].thread, NULL));
	CHECK(!cuStreamQuery(NULL) && !cuEventQuery(event));
}

static void test_busy(void **state)
{
	char variable[128];
	const char *env[] = {variable, NULL};

	(void)state;
	snprintf(variable, sizeof(variable), "LIEN_SOFTCUDA_BUSY_FILE=%s/busy", test_dir);
	run_role("busy", env);
}

const struct role stream_roles[] = {
	{"busy", role_busy},
	{NULL, NULL},
};

int stream_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_streams),
		cmocka_unit_test(test_capture),
		cmocka_unit_test(test_capture_modes),
		cmocka_unit_test(test_capture_own_thread),
		cmocka_unit_test(test_capture_conflicts),
		cmocka_unit_test(test_capture_thread),
		cmocka_unit_test(test_busy),
	};

	return cmocka_run_group_tests_name("softcuda streams", tests, NULL, NULL);
}
