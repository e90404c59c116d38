// Package sockdiag asks the kernel's socket monitor (sock_diag) about the sockets of this host.
package sockdiag
