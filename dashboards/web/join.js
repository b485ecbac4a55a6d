// The join page: copies commands, and shows the commands for an invite link. The code is in the URL's
// fragment, which browsers do not send; a POST request asks the coordinator for the code's state.

import { get, post } from "./api.js";
import { makeCopyButtons } from "./copy_button.js";
import { byId, drawing, setText } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { makeTabs } from "./tabs.js";

const CODE = /^[0-9A-Za-z -]{10,64}$/;

function inviteCode() {
  const code = new URLSearchParams(window.location.hash.slice(1)).get("invite") ?? "";
  return CODE.test(code) ? code.trim() : "";
}

function drawQr({ size, path }) {
  const attributes = { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": t("join.qr_label") };
  return drawing("svg", attributes, drawing("rect", { width: size, height: size }), drawing("path", { d: path }));
}

async function showInvite() {
  const code = inviteCode();
  document.documentElement.classList.toggle("is-invited", Boolean(code));
  delete byId("invited").dataset.state;
  byId("invited-how").hidden = true;
  if (!code) return;
  setText("invited-text", t("frame.loading"));
  try {
    const invite = await post("invite", { code });
    const values = { member: invite.member, until: format.moment(invite.expires_at) };
    setText("invited-text", t(`join.invite_${invite.state}`, values));
    byId("invited-how").hidden = invite.state !== "open";
    const { one_line: terminal, with_uv: uv, code: in_notebook, container } = invite.invitation ?? {};
    for (const [way, text] of Object.entries({ terminal, uv, in_notebook, container })) {
      setText(`invited-${way}`, text ?? "");
    }
    byId("invited-qr").replaceChildren(...(invite.qr ? [drawQr(invite.qr)] : []));
    byId("invited").dataset.state = invite.state;
  } catch (error) {
    setText("invited-text", t("frame.failed", { reason: error.message }));
    byId("invited").dataset.state = "failed";
  }
}

async function showNeeds() {
  const { needs } = await get("joining");
  if (needs.state_bytes) {
    const sizes = { memory: format.size(needs.memory_bytes), size: format.size(needs.state_bytes) };
    setText("state-size", t("join.state_size", sizes));
  }
  if (needs.step_s) setText("step-time", t("join.step_time", { duration: format.duration(needs.step_s) }));
}

makeCopyButtons();
makeTabs(byId("ways"));
window.addEventListener("hashchange", showInvite);
showInvite();
showNeeds().catch((error) => console.warn(error.message));
