// Package mapper lets all services of a host share one Port Mapper. Only one process can bind the
// UDP port of a Port Mapper. The other processes register there over a local socket. When the Port
// Mapper's process ends, another process takes over the port.
//
//	s, err := mapper.Join(":3935", portmap.ServerConfig{}, report) // a service
//	err = s.Set(conventional, sdp)
//
//	c, err := mapper.Offer(server.Addr(), registry) // a Port Mapper that is no service
package mapper
