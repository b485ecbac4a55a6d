// What all pages share: whether what they show is live, said in words.

import { byId, setText } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { onState } from "./live.js";

const BANNERS = new Set(["stale", "disconnected", "archived"]);

function showState(state) {
  byId("state").dataset.state = state;
  setText("state", t(`frame.${state}`));
  if (state === "connecting") return; // the page brought a banner of its own, if the figures are old
  const { archive } = document.documentElement.dataset; // when it was made, in Unix seconds
  const values = { time: format.moment(archive && Number(archive)) };
  const banner = BANNERS.has(state) ? t(`frame.${state}_banner`, values) : "";
  setText("banner", banner);
  byId("banner").hidden = !banner;
}

onState(showState);
