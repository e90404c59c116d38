// Makes short connections in a storm of signals whose handlers restart calls, at both ends, and
// prints each call that fails.
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void handle(int sig) { (void)sig; }

static void storm(void) {
	struct sigaction act = {.sa_handler = handle, .sa_flags = SA_RESTART};
	struct itimerval each = {{0, 1000}, {0, 1000}};
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &each, NULL);
}

static void failed(const char *call, int i) {
	printf("%s of connection %d: %s\n", call, i, strerror(errno));
	fflush(stdout);
}

static void serve(int l) {
	storm();
	for (int i = 0;; i++) {
		char b[16];
		int n, s = accept(l, NULL, NULL);
		if (s < 0) {
			failed("accept", i);
			continue;
		}
		while ((n = read(s, b, sizeof b)) > 0)
			if (write(s, b, n) != n)
				failed("write", i);
		if (n < 0)
			failed("read", i);
		close(s);
	}
}

int main(int argc, char **argv) {
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	int l = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (argc != 3 || bind(l, (void *)&to, sizeof to) || listen(l, 128)) {
		perror("listen");
		return 1;
	}
	signal(SIGPIPE, SIG_IGN);
	pid_t server = fork();
	if (server == 0)
		serve(l);
	storm();
	for (int i = 0; i < atoi(argv[2]); i++) {
		char b[16];
		int s = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(s, (void *)&to, sizeof to))
			failed("connect", i);
		else if (send(s, "hello", 5, 0) != 5)
			failed("send", i);
		else if (recv(s, b, sizeof b, 0) != 5)
			failed("recv", i);
		close(s);
	}
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	puts("end");
	return 0;
}
