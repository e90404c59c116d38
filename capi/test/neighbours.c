/*
 * This program tests several processes of a host, each with a NIC of its own. If the provider has
 * one address for a host, all of them use it. They are servers, which the discriminator
 * distinguishes, or peers. "neighbours NIC CASE" runs one case, and "neighbours NIC" lists the
 * cases.
 */
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "tap.h"

static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE a;
static struct mem m;

static VIP_VI_HANDLE make(void) {
	VIP_VI_ATTRIBUTES at = vi_attrs(VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	VIP_VI_HANDLE v;

	need(VipCreateVi(nic, &at, NULL, NULL, &v));
	return v;
}

/* peer runs one of two processes of this host that connect in the peer-to-peer model and send
 * each other a message. fd is a socket to the other process. */
static void peer(int fd, const char *mine, const char *theirs) {
	struct addr local, remote;
	VIP_VI_ATTRIBUTES attrs;
	VIP_DESCRIPTOR *d;
	char c;

	need(VipOpenNic(tap_nic, &nic));
	mem_open(&m, nic, NULL, 1);
	a = make();
	need(VipPostRecv(a, simple(&m, 0, 0, 100), m.h));
	address(&local, nic, mine);
	if (write(fd, &local, sizeof local) != sizeof local || read(fd, &remote, sizeof remote) != sizeof remote)
		exit(1);
	if (strcmp((char *)remote.a.HostAddress + remote.a.HostAddressLen, theirs) != 0)
		exit(1);
	need(VipConnectPeerRequest(a, &local.a, &remote.a, PATIENCE));
	need(VipConnectPeerWait(a, &attrs));
	need(VipPostSend(a, simple(&m, 1, 200, 64), m.h));
	need(VipSendWait(a, PATIENCE, &d));
	need(VipRecvWait(a, PATIENCE, &d));
	if (write(fd, "", 1) != 1 || read(fd, &c, 1) != 1) /* neither disconnects before the other is done */
		exit(1);
	need(VipDisconnect(a));
}

static void peers(void) {
	int fd[2], s;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) != 0)
		exit(1);
	pid = fork();
	if (pid == 0) {
		peer(fd[1], "one", "two");
		_exit(0);
	}
	peer(fd[0], "two", "one");
	waitpid(pid, &s, 0);
	ok(WIFEXITED(s) && WEXITSTATUS(s) == 0, "two processes of a host are peers, %#x", s);
}

/* server waits for two calls with its discriminator and sends each caller its name. */
static void server(const char *name) {
	struct addr local, remote;
	VIP_VI_ATTRIBUTES attrs;
	VIP_CONN_HANDLE c;
	VIP_DESCRIPTOR *d;
	int i;

	need(VipOpenNic(tap_nic, &nic));
	mem_open(&m, nic, NULL, 1);
	strcpy(data(&m), name);
	for (i = 0; i < 2; i++) {
		a = make();
		need(VipConnectWait(nic, address(&local, nic, name), PATIENCE, &remote.a, &attrs, &c));
		need(VipConnectAccept(c, a));
		need(VipPostRecv(a, simple(&m, 1, 100, 8), m.h));
		need(VipPostSend(a, simple(&m, 0, 0, strlen(name) + 1), m.h));
		need(VipSendWait(a, PATIENCE, &d));
		(void)VipRecvWait(a, PATIENCE, &d); /* the caller disconnects first, which ends this wait */
		need(VipDisconnect(a));
		empty(a);
		need(VipDestroyVi(a));
	}
}

/* Several servers of a host wait at its address, each with its own discriminator. */
static void servers(void) {
	static const char *names[] = {"anna", "bert", "carl"};
	struct addr local, remote;
	VIP_VI_ATTRIBUTES attrs;
	VIP_DESCRIPTOR *d;
	VIP_RETURN r;
	pid_t pid[3];
	long long end;
	int i, s;

	if (strncmp(tap_nic, "fcvi", 4) == 0) {
		printf("ok 1 # SKIP an N_Port of FC-VI has an address and port of its own in each process\n");
		return;
	}
	for (i = 0; i < 3; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			server(names[i]);
			_exit(0);
		}
	}
	need(VipOpenNic(tap_nic, &nic));
	mem_open(&m, nic, NULL, 1);
	for (i = 0; i < 6; i++) {
		a = make();
		need(VipPostRecv(a, simple(&m, 0, 0, 100), m.h));
		end = tap_ms() + PATIENCE;
		while ((r = VipConnectRequest(a, address(&local, nic, "caller"), address(&remote, nic, names[i % 3]), PATIENCE, &attrs)) == VIP_NO_MATCH && tap_ms() < end)
			tap_nap(10);
		code(r, VIP_SUCCESS, "a call of %s", names[i % 3]);
		if (r != VIP_SUCCESS)
			break;
		need(VipRecvWait(a, PATIENCE, &d));
		ok(strcmp(data(&m), names[i % 3]) == 0, "reaches it");
		need(VipDisconnect(a));
	}
	for (i = 0; i < 3; i++) {
		waitpid(pid[i], &s, 0);
		ok(WIFEXITED(s) && WEXITSTATUS(s) == 0, "%s ends in order, %#x", names[i], s);
	}
}

#define CROWD 6

/* This is the memory that the processes of a crowd share: their addresses and their progress. */
struct crowd {
	struct addr at[CROWD];
	int ready, over;
};

static void all(int *n) {
	__sync_add_and_fetch(n, 1);
	while (__sync_add_and_fetch(n, 0) < CROWD)
		tap_nap(1);
}

/*
 * member is one process of a crowd. It requests a connection to every other member, then waits for
 * each connection and sends its number on it. Both members of a connection use the same
 * discriminator, as in programs that derive it from data that both know.
 */
static void member(struct crowd *c, int me) {
	VIP_VI_HANDLE v[CROWD];
	VIP_VI_ATTRIBUTES attrs;
	VIP_DESCRIPTOR *d;
	struct addr remote;
	char both[32];
	int i;

	need(VipOpenNic(tap_nic, &nic));
	mem_open(&m, nic, NULL, 1);
	data(&m)[1000] = me;
	for (i = 0; i < CROWD; i++) {
		v[i] = make();
		need(VipPostRecv(v[i], simple(&m, i, i, 1), m.h));
	}
	address(&c->at[me], nic, "peers");
	all(&c->ready);
	for (i = 0; i < CROWD; i++) {
		struct addr local = c->at[me];

		if (i == me)
			continue;
		remote = c->at[i];
		snprintf(both, sizeof both, "%02d+%02d", i < me ? i : me, i < me ? me : i);
		memcpy((char *)local.a.HostAddress + local.a.HostAddressLen, both, 5);
		memcpy((char *)remote.a.HostAddress + remote.a.HostAddressLen, both, 5);
		need(VipConnectPeerRequest(v[i], &local.a, &remote.a, 60000));
	}
	for (i = 0; i < CROWD; i++)
		if (i != me)
			need(VipConnectPeerWait(v[i], &attrs));
	for (i = 0; i < CROWD; i++)
		if (i != me)
			need(VipPostSend(v[i], simple(&m, CROWD + i, 1000, 1), m.h));
	for (i = 0; i < CROWD; i++)
		if (i != me) {
			need(VipRecvWait(v[i], PATIENCE, &d));
			need(VipSendWait(v[i], PATIENCE, &d));
			if (data(&m)[i] != i)
				exit(2);
		}
	all(&c->over);
}

/* More than two peers of one host connect at once, each to every other. */
static void crowd(void) {
	struct crowd *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[CROWD];
	int i, s;

	for (i = 0; i < CROWD; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			member(c, i);
			_exit(0);
		}
	}
	for (i = 0; i < CROWD; i++) {
		waitpid(pid[i], &s, 0);
		ok(WIFEXITED(s) && WEXITSTATUS(s) == 0, "process %d has all its peers, %#x", i, s);
	}
}

static const struct tap_case cases[] = {{"peers", peers}, {"crowd", crowd}, {"servers", servers}};

int main(int argc, char **argv) { return tap_case(argc, argv, cases, sizeof cases / sizeof *cases); }
