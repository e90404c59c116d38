/*
 * libfabric between two processes: the loops of libfabric's own benchmarks (one
 * call per message, a window of outstanding messages), because Debian does not
 * package these. One run measures one operation and prints one JSON line.
 *
 *   libfabric PROVIDER write|read|tagged|ping SIZE WINDOW SECONDS
 *
 * The parent initiates. Every run except ping ends when the peer has answered
 * a last message, so that all data have arrived by then.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TAG_DATA = 1, TAG_SYNC = 2 };

struct hello { /* what each side sends to the other through a pipe */
	char name[128];
	uint64_t name_len, addr, key;
};

static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *txcq, *rxcq;
static struct fid_mr *mr;
static fi_addr_t peer;
static struct hello mine, theirs;
static char *buf;
static size_t size, room;
static void *desc;
static uint64_t sent_done, recv_done;

static void check(const char *what, long r)
{
	if (r < 0) {
		fprintf(stderr, "libfabric: %s: %s\n", what, fi_strerror(-r));
		exit(1);
	}
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void drive_one(struct fid_cq *cq, uint64_t *count)
{
	struct fi_cq_tagged_entry e[64];
	ssize_t n = fi_cq_read(cq, e, 64);
	if (n > 0) {
		*count += n;
	} else if (n != -FI_EAGAIN) {
		struct fi_cq_err_entry x = {0};
		fi_cq_readerr(cq, &x, 0);
		check("completion", -(long)x.err);
	}
}

static void drive(void)
{
	drive_one(txcq, &sent_done);
	drive_one(rxcq, &recv_done);
}

#define RETRY(call)                             \
	do {                                    \
		long r_;                        \
		while ((r_ = (call)) == -FI_EAGAIN) \
			drive();                \
		check(#call, r_);               \
	} while (0)

static void setup(const char *provider)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr ca = {.format = FI_CQ_FORMAT_TAGGED, .size = 4096};
	struct fi_av_attr aa = {.type = FI_AV_TABLE};
	struct fid_fabric *fabric;
	struct fid_av *av;
	hints->fabric_attr->prov_name = strdup(provider);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	check("fi_getinfo", fi_getinfo(FI_VERSION(1, 14), strcmp(provider, "shm") ? "127.0.0.1" : NULL, NULL,
				       strcmp(provider, "shm") ? FI_SOURCE : 0, hints, &info));
	check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	check("fi_domain", fi_domain(fabric, info, &domain, NULL));
	check("fi_cq_open", fi_cq_open(domain, &ca, &txcq, NULL));
	check("fi_cq_open", fi_cq_open(domain, &ca, &rxcq, NULL));
	check("fi_av_open", fi_av_open(domain, &aa, &av, NULL));
	check("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
	check("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
	check("fi_ep_bind", fi_ep_bind(ep, &txcq->fid, FI_TRANSMIT));
	check("fi_ep_bind", fi_ep_bind(ep, &rxcq->fid, FI_RECV));
	check("fi_enable", fi_enable(ep));
	room = size < 4096 ? 4096 : size;
	if (posix_memalign((void **)&buf, 4096, room + 64))
		check("memory", -FI_ENOMEM);
	memset(buf, 1, room + 64);
	check("fi_mr_reg", fi_mr_reg(domain, buf, room + 64,
				     FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
				     strcmp(provider, "shm") ? 17 : getpid(), 0, &mr, NULL));
	mine.key = fi_mr_key(mr);
	mine.addr = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)buf : 0;
	desc = fi_mr_desc(mr);
	mine.name_len = sizeof mine.name;
	check("fi_getname", fi_getname(&ep->fid, mine.name, &mine.name_len));
	peer = (fi_addr_t)(uintptr_t)av; /* replaced by greet */
}

static void greet(int in, int out)
{
	struct fid_av *av = (struct fid_av *)(uintptr_t)peer;
	if (write(out, &mine, sizeof mine) != sizeof mine || read(in, &theirs, sizeof theirs) != sizeof theirs)
		check("exchange", -FI_EIO);
	if (fi_av_insert(av, theirs.name, 1, &peer, 0, NULL) != 1)
		check("fi_av_insert", -FI_EINVAL);
}

static struct fi_context2 contexts[4096];
static unsigned used;

static void *context(void) { return &contexts[used++ % 4096]; }

static void post_recv(uint64_t tag)
{
	RETRY(fi_trecv(ep, tag == TAG_SYNC ? buf + room : buf, tag == TAG_SYNC ? 8 : size, desc, peer, tag, 0, context()));
}

static void post_send(uint64_t tag)
{
	RETRY(fi_tsend(ep, tag == TAG_SYNC ? buf + room : buf, tag == TAG_SYNC ? 8 : size, desc, peer, tag, context()));
}

static void wait_sent(uint64_t n)
{
	while (sent_done < n)
		drive();
}

static void wait_received(uint64_t n)
{
	while (recv_done < n)
		drive();
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(uint64_t *)a, y = *(uint64_t *)b;
	return (x > y) - (x < y);
}

/* The quantiles of the latency that are reported, the same as in picture.go. */
static const double quantiles[] = {0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999};

static void ping(uint64_t limit)
{
	static uint64_t rtt[1 << 20];
	uint64_t n = 0, start = now(), last = start, t;
	post_recv(TAG_DATA);
	do {
		post_send(TAG_DATA);
		wait_received(n + 1);
		post_recv(TAG_DATA);
		wait_sent(n + 1);
		t = now();
		rtt[n++] = t - last;
		last = t;
	} while (t - start < limit && n < 1 << 20);
	qsort(rtt, n, sizeof rtt[0], compare);
	printf("{\"messages\":%llu,\"seconds\":%.9f,\"latency_us\":%.4f,\"quantiles_us\":[", (unsigned long long)n, (last - start) / 1e9,
	       rtt[n / 2] / 2e3);
	for (size_t i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++)
		printf("%s%.4f", i ? "," : "", rtt[(uint64_t)((double)n * quantiles[i])] / 2e3);
	printf("]}\n");
}

static void stream(const char *op, uint64_t window, uint64_t limit)
{
	uint64_t n = 0, start = now();
	int tagged = !strcmp(op, "tagged"), writing = !strcmp(op, "write");
	while (now() - start < limit) {
		for (int i = 0; i < 16; i++, n++) {
			while (n - sent_done >= window)
				drive();
			if (tagged) {
				post_send(TAG_DATA);
			} else if (writing) {
				RETRY(fi_write(ep, buf, size, desc, peer, theirs.addr, theirs.key, context()));
			} else {
				RETRY(fi_read(ep, buf, size, desc, peer, theirs.addr, theirs.key, context()));
			}
		}
	}
	wait_sent(n);
	post_recv(TAG_SYNC);
	post_send(TAG_SYNC);
	wait_received(1);
	double s = (now() - start) / 1e9;
	printf("{\"bytes\":%llu,\"seconds\":%.9f,\"messages\":%llu}\n", (unsigned long long)(n * size), s,
	       (unsigned long long)n);
}

/* serve is the peer of a stream or of a ping-pong. It runs until the parent kills it. */
static void serve(const char *op)
{
	uint64_t posted = 0, answered = 0;
	int pinging = !strcmp(op, "ping"), tagged = !strcmp(op, "tagged");
	if (pinging) {
		post_recv(TAG_DATA);
		for (;;) {
			wait_received(answered + 1);
			answered++;
			post_recv(TAG_DATA);
			post_send(TAG_DATA);
			wait_sent(answered);
		}
	}
	if (tagged) {
		/* The last message (TAG_SYNC) is answered after all data messages.
		 * 256 receives serve the data, and one more serves TAG_SYNC. */
		struct fi_cq_tagged_entry e[64];
		for (; posted < 256; posted++)
			post_recv(TAG_DATA);
		post_recv(TAG_SYNC);
		for (;;) {
			ssize_t n = fi_cq_read(rxcq, e, 64);
			for (ssize_t i = 0; i < n; i++)
				post_recv(e[i].tag == TAG_SYNC ? (post_send(TAG_SYNC), TAG_SYNC) : TAG_DATA);
			drive_one(txcq, &sent_done);
		}
	}
	post_recv(TAG_SYNC);
	wait_received(1);
	post_send(TAG_SYNC);
	for (;;)
		drive();
}

int main(int argc, char **argv)
{
	int up[2], down[2];
	if (argc != 6) {
		fprintf(stderr, "usage: libfabric PROVIDER write|read|tagged|ping SIZE WINDOW SECONDS\n");
		return 2;
	}
	const char *op = argv[2];
	size = strtoull(argv[3], 0, 10);
	if (pipe(up) || pipe(down))
		return 1;
	pid_t child = fork();
	if (child == 0) {
		char c;
		close(up[0]), close(down[1]);
		setup(argv[1]);
		greet(down[0], up[1]);
		if (write(up[1], "", 1) != 1 || read(down[0], &c, 1) != 1)
			_exit(1);
		serve(op);
	}
	char c;
	close(up[1]), close(down[0]);
	setup(argv[1]);
	greet(up[0], down[1]);
	if (read(up[0], &c, 1) != 1 || write(down[1], "", 1) != 1)
		return 1;
	uint64_t limit = atof(argv[5]) * 1e9;
	if (!strcmp(op, "ping"))
		ping(limit);
	else
		stream(op, strtoull(argv[4], 0, 10), limit);
	fflush(stdout);
	kill(child, 9);
	waitpid(child, 0, 0);
	_exit(0);
}
