// The frame of all pages: a status text that states whether the figures are live.

import { byId, setText } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { onState } from "./live.js";

const BANNERS = new Set(["stale", "disconnected", "archived"]);

function showState(state) {
  byId("state").dataset.state = state;
  setText("state", t(`frame.${state}`));
  if (state === "connecting") return; // the server's page has a banner if the figures are old
  const { archive } = document.documentElement.dataset; // the archive's time in Unix seconds
  const values = { time: format.moment(archive && Number(archive)) };
  const banner = BANNERS.has(state) ? t(`frame.${state}_banner`, values) : "";
  setText("banner", banner);
  byId("banner").hidden = !banner;
}

onState(showState);
