package nvme_test

import (
	"fmt"
	"log"
	"strings"

	"viaduct/nvme"
)

// A text is a read-only disk of a single block of 512 bytes.
func Example() {
	target, err := nvme.New(nvme.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer target.Close()
	text := strings.NewReader(strings.Repeat("viaduct\n", 64))
	id, err := target.Add(nvme.Namespace{Data: text, Size: text.Size(), ReadOnly: true})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := target.Listen("127.0.0.1:0"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("namespace", id)
	// Output: namespace 1
}
