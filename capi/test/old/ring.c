/*
 * A ring of threads, each with a NIC handle of its own, as a program for several NICs of a
 * host: neighbours ask for each other at once in the peer-to-peer model, with the same
 * discriminator on both sides, and poll for the result; a token goes round, taken by
 * waiting with short timeouts or by a handler. It is written from the header and the
 * specification alone and stays as it is.
 *
 *	ring NIC
 */
#define VIPL095
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vipl.h>

#define NICS 12
#define ROUNDS 40
#define SYNCH_NOTIFY 3 /* every so many threads one takes the token in a handler */

struct node {
	VIP_NIC_HANDLE nic;
	VIP_NIC_ATTRIBUTES attrs;
	VIP_VI_HANDLE left, right;
	VIP_MEM_HANDLE handle;
	VIP_DESCRIPTOR *desc; /* two receives from the left, one send to the right */
	unsigned *token;
	pthread_mutex_t mutex;
	pthread_cond_t came;
	VIP_DESCRIPTOR *taken;
	int lost;
	pthread_t thread;
};

static const char *device = "/dev/via_lo";
static struct node node[NICS];
static pthread_barrier_t barrier;

static void test(VIP_RETURN rc, VIP_RETURN want, int line)
{
	if (rc != want) {
		fprintf(stderr, "ring.c:%d: %d\n", line, (int)rc);
		exit(1);
	}
}

#define OK(call) test(call, VIP_SUCCESS, __LINE__)

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	struct node *n = context;

	if (e->ErrorCode == VIP_ERROR_CONN_LOST && e->ResourceCode == VIP_RESOURCE_VI && e->NicHandle == n->nic)
		__sync_add_and_fetch(&n->lost, 1);
}

static void on_recv(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d)
{
	struct node *n = context;

	if (nic != n->nic || vi != n->left)
		exit(1);
	pthread_mutex_lock(&n->mutex);
	n->taken = d;
	pthread_cond_signal(&n->came);
	pthread_mutex_unlock(&n->mutex);
}

static VIP_DESCRIPTOR *token_from_left(struct node *n)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN rc;

	if ((n - node) % SYNCH_NOTIFY == 0) {
		OK(VipRecvNotify(n->left, n, on_recv));
		pthread_mutex_lock(&n->mutex);
		while (!n->taken)
			pthread_cond_wait(&n->came, &n->mutex);
		d = n->taken;
		n->taken = NULL;
		pthread_mutex_unlock(&n->mutex);
		return d;
	}
	while ((rc = VipRecvWait(n->left, 5, &d)) == VIP_TIMEOUT)
		;
	OK(rc);
	return d;
}

static void recv_at_left(struct node *n, VIP_DESCRIPTOR *d)
{
	memset(d, 0, sizeof *d);
	d->CS.SegCount = 1;
	d->CS.Length = sizeof *n->token;
	d->DS[0].Local.Data.Address = n->token + (d - n->desc);
	d->DS[0].Local.Handle = n->handle;
	d->DS[0].Local.Length = sizeof *n->token;
	OK(VipPostRecv(n->left, d, n->handle));
}

static void send_to_right(struct node *n, unsigned token)
{
	VIP_DESCRIPTOR *d = &n->desc[2], *done;

	memset(d, 0, sizeof *d);
	n->token[2] = token;
	d->CS.SegCount = 1;
	d->CS.Length = sizeof *n->token;
	d->DS[0].Local.Data.Address = &n->token[2];
	d->DS[0].Local.Handle = n->handle;
	d->DS[0].Local.Length = sizeof *n->token;
	OK(VipPostSend(n->right, d, n->handle));
	OK(VipSendWait(n->right, VIP_INFINITE, &done));
	if (done != d)
		exit(1);
}

static void request(struct node *n, VIP_VI_HANDLE vi, struct node *other, int between)
{
	VIP_NET_ADDRESS *local = calloc(1, 64), *remote = calloc(1, 64);
	char disc[16];

	snprintf(disc, sizeof disc, "ring %d", between);
	local->HostAddressLen = n->attrs.NicAddressLen;
	remote->HostAddressLen = other->attrs.NicAddressLen;
	memcpy(local->HostAddress, n->attrs.LocalNicAddress, local->HostAddressLen);
	memcpy(remote->HostAddress, other->attrs.LocalNicAddress, remote->HostAddressLen);
	local->DiscriminatorLen = remote->DiscriminatorLen = strlen(disc);
	strcpy((char *)local->HostAddress + local->HostAddressLen, disc);
	strcpy((char *)remote->HostAddress + remote->HostAddressLen, disc);
	OK(VipConnectPeerRequest(vi, local, remote, 30000));
	free(local);
	free(remote);
}

static void finish(VIP_VI_HANDLE vi)
{
	VIP_VI_ATTRIBUTES a;
	VIP_RETURN rc;

	while ((rc = VipConnectPeerDone(vi, &a)) == VIP_NOT_DONE)
		usleep(1000);
	OK(rc);
	if (a.ReliabilityLevel != VIP_SERVICE_RELIABLE_DELIVERY)
		exit(1);
}

static void *run(void *p)
{
	struct node *n = p;
	int me = n - node, next = (me + 1) % NICS, before = (me + NICS - 1) % NICS, i;
	VIP_VI_ATTRIBUTES a;
	VIP_DESCRIPTOR *d;
	char *mem;

	OK(VipOpenNic(device, &n->nic));
	OK(VipQueryNic(n->nic, &n->attrs));
	OK(VipErrorCallback(n->nic, n, on_error));
	mem = malloc(8192);
	n->desc = (VIP_DESCRIPTOR *)(((size_t)mem + VIP_DESCRIPTOR_ALIGNMENT) & ~(size_t)(VIP_DESCRIPTOR_ALIGNMENT - 1));
	n->token = (unsigned *)(n->desc + 3);
	OK(VipRegisterMem(n->nic, mem, 8192, NULL, &n->handle));
	memset(&a, 0, sizeof a);
	a.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
	a.MaxTransferSize = 32768;
	OK(VipCreateVi(n->nic, &a, NULL, NULL, &n->left));
	OK(VipCreateVi(n->nic, &a, NULL, NULL, &n->right));
	pthread_barrier_wait(&barrier);
	recv_at_left(n, &n->desc[0]);
	recv_at_left(n, &n->desc[1]);
	request(n, n->left, &node[before], before);
	request(n, n->right, &node[next], me);
	finish(n->left);
	finish(n->right);
	if (me == 0)
		send_to_right(n, 0);
	for (i = 0; i < ROUNDS; i++) {
		unsigned token;

		d = token_from_left(n);
		token = *(unsigned *)d->DS[0].Local.Data.Address;
		if (token != (unsigned)(i * NICS + (me == 0 ? NICS - 1 : me - 1)))
			exit(2);
		recv_at_left(n, d);
		if (me != 0 || i + 1 < ROUNDS)
			send_to_right(n, token + 1);
	}
	pthread_barrier_wait(&barrier);
	OK(VipDisconnect(n->left)); /* the right one hears of it */
	while (!__sync_add_and_fetch(&n->lost, 0))
		usleep(1000);
	OK(VipDisconnect(n->right));
	OK(VipDisconnect(n->right)); /* twice, to be sure */
	for (i = 0; i < 2; i++) {
		test(VipRecvDone(n->left, &d), VIP_DESCRIPTOR_ERROR, __LINE__);
		if (!d || !(d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR))
			exit(3);
	}
	test(VipRecvDone(n->left, &d), VIP_DESCRIPTOR_ERROR, __LINE__);
	if (d)
		exit(3);
	OK(VipDestroyVi(n->left));
	OK(VipDestroyVi(n->right));
	OK(VipDeregisterMem(n->nic, mem, n->handle));
	OK(VipCloseNic(n->nic));
	free(mem);
	return NULL;
}

/* The names of hosts: the short one of this host, and localhost, lead to the NIC. */
static void names(void)
{
	VIP_NET_ADDRESS *a = malloc(64);
	VIP_NIC_HANDLE nic;
	VIP_NIC_ATTRIBUTES na;
	char host[256], *dot;

	OK(VipOpenNic(device, &nic));
	OK(VipQueryNic(nic, &na));
	gethostname(host, sizeof host);
	if ((dot = strchr(host, '.')))
		*dot = 0;
	OK(VipNSInit(nic, NULL));
	OK(VipNSGetHostByName(nic, host, a, 0));
	if (a->HostAddressLen != na.NicAddressLen || memcmp(a->HostAddress, na.LocalNicAddress, na.NicAddressLen) != 0) {
		fprintf(stderr, "%s is not the address of the NIC\n", host);
		exit(1);
	}
	OK(VipNSGetHostByName(nic, (char *)"localhost", a, 0));
	if (memcmp(a->HostAddress, na.LocalNicAddress, na.NicAddressLen) != 0)
		exit(1);
	OK(VipNSShutdown(nic));
	OK(VipCloseNic(nic));
	free(a);
}

int main(int argc, char **argv)
{
	int i;

	if (argc > 1)
		device = argv[1];
	names();
	pthread_barrier_init(&barrier, NULL, NICS);
	for (i = 0; i < NICS; i++) {
		pthread_mutex_init(&node[i].mutex, NULL);
		pthread_cond_init(&node[i].came, NULL);
		pthread_create(&node[i].thread, NULL, run, &node[i]);
	}
	for (i = 0; i < NICS; i++)
		pthread_join(node[i].thread, NULL);
	printf("%d NICs, %d rounds\n", NICS, ROUNDS);
	return 0;
}
