package registry_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"viaduct/registry"
)

// A service registers itself while running, and a client finds the service by name.
func Example() {
	dir, err := os.MkdirTemp("", "names")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	reg := registry.NewFile(filepath.Join(dir, "names")) // all programs that use the file see the same names
	node := registry.Record{Kind: registry.VI, Name: "node7", Value: "192.0.2.7"}
	k, err := registry.Keep(ctx, reg, node, 30*time.Second, func(err error) {
		if err != nil {
			log.Print("not renewed: ", err)
		}
	})
	if err != nil {
		log.Fatal(err)
	}

	a, err := reg.Resolve(ctx, registry.VI, "node7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.Records[0].Value, "stale:", a.Stale, "limited:", !a.Until().IsZero())

	k.Close()
	_, err = reg.Resolve(ctx, registry.VI, "node7")
	fmt.Println(errors.Is(err, registry.ErrNotFound))
	// Output:
	// 192.0.2.7 stale: false limited: true
	// true
}
