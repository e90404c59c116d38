package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The measurements of this file call a service of gRPC that returns its argument. The messages are
// plain bytes, so that no time passes with encoding.

const echoMethod = "/peers.Echo/Echo"

// plainBytes is the codec of messages that are a *[]byte.
type plainBytes struct{}

func (plainBytes) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (plainBytes) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), b...)
	return nil
}

func (plainBytes) Name() string { return "bytes" }

// serveGRPC answers calls until the initiator has measured.
func serveGRPC(m measure, l net.Listener) error {
	s := grpc.NewServer(grpc.ForceServerCodec(plainBytes{}))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "peers.Echo",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Echo",
			Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				b := new([]byte)
				err := decode(b)
				return b, err
			},
		}},
	}, nil)
	defer context.AfterFunc(m.over, s.Stop)()
	return s.Serve(l)
}

// calls makes m.Conns callers call the service for m.Time, over one connection of dial.
func calls(m measure, dial func() (net.Conn, error)) (result, error) {
	c, err := grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(plainBytes{})),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dial() }))
	if err != nil {
		return result{}, err
	}
	defer c.Close()
	req := buffer(m.Size)
	return concurrently(m, func(int) error {
		var answer []byte
		err := c.Invoke(context.Background(), echoMethod, &req, &answer)
		if err == nil && len(answer) != len(req) {
			err = fmt.Errorf("an answer of %d bytes, not %d", len(answer), len(req))
		}
		return err
	})
}
