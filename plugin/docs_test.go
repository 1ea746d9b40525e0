package plugin

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/xdp"
)

// Each code that a call can end with has a section in docs/operations.md, and each reason to drop a line.
func TestOperationsNamesEveryCodeAndReason(t *testing.T) {
	doc, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []uint{
		types.ErrIncompatibleCNIVersion, types.ErrInvalidEnvironmentVariables, types.ErrIOFailure, types.ErrDecodingFailure,
		types.ErrInvalidNetworkConfig, types.ErrInvalidNetNS, types.ErrTryAgainLater, types.ErrInternal,
		codeUnavailable, 100, CodeUnsupported, CodeBusy, CodeCorrupt, CodeDiffers,
	} {
		if !strings.Contains(string(doc), fmt.Sprintf("\n### %d: ", code)) {
			t.Errorf("docs/operations.md has no section for code %d", code)
		}
	}
	drops := 0
	for r := xdp.ReasonUnknown; !strings.HasPrefix(r.String(), "reason_"); r++ {
		if r.Dropped() {
			drops++
			if !strings.Contains(string(doc), "`"+r.String()+"`") {
				t.Errorf("docs/operations.md does not explain the reason %s", r)
			}
		}
	}
	if drops < 10 {
		t.Errorf("want all reasons walked, got %d that drop", drops)
	}
}
