/* web PORT BYTES: answers one HTTP request at 127.0.0.1 with BYTES bytes and ends. librspreload can
 * carry its sockets, because it uses socket, accept, read and write, and neither epoll nor accept4. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int all(int fd, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t k = write(fd, p, n);
		if (k <= 0)
			return -1;
		p += k;
		n -= k;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	char request[4096], head[128], *body;
	size_t size, got = 0, i;
	int l, c, one = 1;

	if (argc != 3)
		return 2;
	size = strtoul(argv[2], NULL, 10);
	at.sin_port = htons(atoi(argv[1]));
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	body = malloc(size);
	for (i = 0; i < size; i++)
		body[i] = 'a' + i % 23;
	l = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(l, (struct sockaddr *)&at, sizeof at) || listen(l, 8)) {
		perror("listen");
		return 1;
	}
	c = accept(l, NULL, NULL);
	if (c < 0) {
		perror("accept");
		return 1;
	}
	while (got < sizeof request - 1) {
		ssize_t k = read(c, request + got, sizeof request - 1 - got);
		if (k <= 0)
			return 1;
		got += k;
		request[got] = 0;
		if (strstr(request, "\r\n\r\n"))
			break;
	}
	snprintf(head, sizeof head, "HTTP/1.0 200 OK\r\nContent-Length: %zu\r\n\r\n", size);
	if (all(c, head, strlen(head)) || all(c, body, size))
		return 1;
	shutdown(c, SHUT_WR);
	while (read(c, request, sizeof request) > 0)
		;
	close(c);
	close(l);
	return 0;
}
