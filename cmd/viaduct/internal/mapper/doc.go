// Package mapper shares the Port Mapper of a host between the services that run there. The UDP
// port of a Port Mapper is one process's. The others register with that process over a local
// socket, and when it ends one of them takes its place.
//
//	s, err := mapper.Join(":3935", portmap.ServerConfig{}, report) // a service
//	err = s.Set(conventional, sdp)
//
//	c, err := mapper.Offer(server.Addr(), registry) // a Port Mapper that is no service
package mapper
