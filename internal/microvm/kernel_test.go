package microvm

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

func TestNewestKernelIsTheHighestOfItsSeries(t *testing.T) {
	const list = `linux-image-6.1.0-9-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-57-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-57-cloud-amd64-dbg - Debug symbols
linux-image-6.1.0-58-cloud-amd64-unsigned - Linux 6.1 for x86-64 cloud
linux-image-6.1.0-50-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.12-cloud-amd64 - Linux for x86-64 cloud (meta-package)
linux-image-6.12.99+deb12-cloud-amd64 - Linux 6.12 for x86-64 cloud (signed)
linux-image-6.12.117+deb12-cloud-amd64 - Linux 6.12 for x86-64 cloud (signed)
linux-image-6.12.117+deb12-amd64 - Linux 6.12 for 64-bit PCs (signed)
`
	for series, want := range map[Series]string{
		Series61:  "linux-image-6.1.0-57-cloud-amd64",
		Series612: "linux-image-6.12.117+deb12-cloud-amd64",
	} {
		if got, ok := newest(list, series); !ok || got != want {
			t.Errorf("%s: want %s, got %q", series, want, got)
		}
	}
	if got, ok := newest("linux-image-6.12-cloud-amd64 - Linux (meta-package)\n", Series612); ok {
		t.Errorf("a meta-package holds no kernel, got %s", got)
	}
}

func TestArchiveIsOneThatCPIOReads(t *testing.T) {
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		t.Skip("needs cpio")
	}
	var b bytes.Buffer
	for _, name := range []string{"a", "second"} {
		c := NewCPIO(&b)
		c.Dir("d" + name)
		c.File("d"+name+"/file", 0o750, []byte("odd length"+name))
		c.File("d"+name+"/empty", 0o644, nil)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		list := exec.Command(cpio, "-tv", "--quiet")
		list.Stdin = bytes.NewReader(b.Bytes())
		out, err := list.CombinedOutput()
		if err != nil {
			t.Fatalf("cpio: %v: %s", err, out)
		}
		for _, want := range []string{"drwxr-xr-x", "-rwxr-x---", "/file", "/empty"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("want %q in\n%s", want, out)
			}
		}
		if b.Len()%4 != 0 {
			t.Errorf("another archive follows at %d, which the kernel does not read", b.Len())
		}
	}
}
