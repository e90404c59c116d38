// Runs PROGRAM where the system calls with the given numbers fail with EPERM, as
// in a container whose profile forbids them: NR[,NR]... PROGRAM ARGS...
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
	struct sock_filter f[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
	int n = 1;
	for (char *p = strtok(argv[1], ","); p; p = strtok(0, ",")) {
		f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(p), 0, 1);
		f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	}
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog p = {n, f};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p)) { perror("seccomp"); return 1; }
	execv(argv[2], argv + 2);
	perror(argv[2]);
	return 1;
}
